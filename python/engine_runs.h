// The runs that one Python object makes in the memory of an engine: names them for the replay, and keeps what the last
// one did. Any thread may call; a run begins and ends on one thread. The Replay must outlive it.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "berth/run/replay.h"
#include "bindings.h"

namespace berth::python {

class EngineRuns {
 public:
  explicit EngineRuns(Replay& replay);
  // Forgets the plans of its runs.
  ~EngineRuns();
  EngineRuns(const EngineRuns&) = delete;
  EngineRuns& operator=(const EngineRuns&) = delete;

  // Begins a run on the calling thread. Runs of a kind make requests that depend on the dimensions.
  void begin(const std::string& kind, const std::vector<std::int64_t>& dimensions);
  // Ends it. With `plans_now`, what was recorded is planned here instead of by the next run: its outputs are released.
  // `failed`: as of Replay::end_run.
  void end(const std::string& kind, std::vector<std::int64_t> dimensions, bool plans_now, bool failed = false);

  // What the last run did and what the memory of all runs holds, as a dict for a MemoryReport.
  nb::dict report() const;

 private:
  void note(const Result<void>& result);

  Replay& replay_;
  std::string number_;
  mutable std::mutex mutex_;  // guards what follows; never held while the replay is called
  std::set<std::string> keys_;
  ReplayRun last_;
  std::string last_key_, problem_;
  std::vector<std::int64_t> last_dimensions_;
  std::uint64_t runs_ = 0;
};

}  // namespace berth::python
