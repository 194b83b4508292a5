// Planning problems and plans as files: a problem is a CSV table with one row a buffer, a plan is a JSON document
// that carries the fingerprint of the problem it is for. Everything here is a plain value or a pure function; any
// thread may call any of it.
//
//     id,lower,upper,size            id,lower,upper,size,offset
//     a,0,2,4096             ->      a,0,2,4096,0
//     b,1,3,8192                     b,1,3,8192,4096
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

// The columns a problem's table may have. The first four must be there; the order is free.
enum class PlanColumn : std::uint8_t {
  kId,         // any text, no two alike
  kLower,      // first level of the life
  kUpper,      // the level after its last
  kSize,       // bytes
  kAlignment,  // a power of two; empty: none
  kOffset,     // fixed offset; empty: free
  kGaps,       // "3-5 7-8": levels within the life without data, half-open; empty: none
  kHint,       // an offset to prefer; empty: none
  kLabel,      // for people; empty: the id serves
  kBank,       // the first bank it may be in, from 0; empty: 0
};

// The name of a column in the header, such as "lower".
std::string_view to_string(PlanColumn column) noexcept;

// A problem as its file had it: one lifetime a row, in the order of the rows. A file that names bank k has banks 0 to
// k, each without a limit; set their capacities in `problem`.
struct PlanTable {
  PlanProblem problem;
  std::vector<std::string> ids;     // one for each lifetime
  std::vector<PlanColumn> columns;  // as in the header
};

// Reads a table from text. `file` names it in errors. O(text) time and memory.
// kInvalidData: "problem.csv:3:7: expected ..., found ...": line and column count from 1, columns in bytes.
Result<PlanTable> parse_plan_csv(std::string_view text, std::string_view file);

// The same for a file. kIo: it cannot be read.
Result<PlanTable> read_plan_csv(const std::string& path);

// The table as text, as parse_plan_csv reads it.
std::string format_plan_csv(const PlanTable& table);

// The table with the plan's offsets in the column "offset", which is added at the end if it was not there. A plan of
// several blocks adds a column "block". A node of zero bytes has an empty offset.
// Requires: the plan is for the table's problem.
std::string format_plan_csv(const PlanTable& table, const MemoryPlan& plan);

// The plan as a JSON document: size, lower_bound, gap, optimal, seconds, strategy, count (nodes that have a slot),
// work, fingerprint (16 hexadecimal digits), blocks and slots ([block, offset, bytes] or null, one a node).
std::string plan_to_json(const MemoryPlan& plan);

// Reads such a document back.
// kInvalidData: it is not one, or the plan breaks a rule of the problem (the sentence says which).
// kSizeMismatch: it was made for another problem: the fingerprints differ.
Result<MemoryPlan> plan_from_json(std::string_view json, const PlanProblem& problem);

}  // namespace berth
