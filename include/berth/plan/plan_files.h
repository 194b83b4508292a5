// Planning problems and plans as files. A problem is a CSV table with one row per buffer; a plan is a JSON document
// that carries the fingerprint of its problem. Everything here is a plain value or a pure function; any thread may call
// it.
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

// The columns of a problem table. The first four are required; the order is free.
enum class PlanColumn : std::uint8_t {
  kId,         // any unique text
  kLower,      // first level of the lifetime
  kUpper,      // the level after its last level
  kSize,       // bytes
  kAlignment,  // a power of two; empty: none
  kOffset,     // fixed offset; empty: not fixed
  kGaps,       // "3-5 7-8": half-open level ranges without data; empty: none
  kHint,       // preferred offset; empty: none
  kLabel,      // for messages and maps; empty: the id is used
  kBank,       // first allowed bank, from 0; empty: 0
};

// The name of a column in the header, such as "lower".
std::string_view to_string(PlanColumn column) noexcept;

// The contents of a problem file: one lifetime per row, in row order. A file that names bank k has banks 0 to k, each
// without a limit; set their capacities in `problem`.
struct PlanTable {
  PlanProblem problem;
  std::vector<std::string> ids;     // one per lifetime
  std::vector<PlanColumn> columns;  // as in the header
};

// Parses a table. `file` names it in errors. O(text) time and memory.
// kInvalidData: "problem.csv:3:7: expected ..., found ...". Lines and columns count from 1; columns are in bytes.
Result<PlanTable> parse_plan_csv(std::string_view text, std::string_view file);

// The same for a file. kIo: it cannot be read.
Result<PlanTable> read_plan_csv(const std::string& path);

// The table as text, in the format that parse_plan_csv reads.
std::string format_plan_csv(const PlanTable& table);

// The table with the offsets of the plan in the column "offset", which is added at the end if it is missing. For a plan
// of several blocks, a column "block" is added. A node of zero bytes has an empty offset. Requires: the plan is for the
// problem of the table.
std::string format_plan_csv(const PlanTable& table, const MemoryPlan& plan);

// The plan as a JSON document: size, lower_bound, gap, optimal, seconds, strategy, count (of nodes with a slot), work,
// fingerprint (16 hexadecimal digits), blocks, and slots ([block, offset, bytes] or null, one per node).
std::string plan_to_json(const MemoryPlan& plan);

// Parses such a document.
// kInvalidData: it is malformed, or the plan violates a rule of the problem (the message says which).
// kSizeMismatch: it was made for another problem: the fingerprints differ.
Result<MemoryPlan> plan_from_json(std::string_view json, const PlanProblem& problem);

}  // namespace berth
