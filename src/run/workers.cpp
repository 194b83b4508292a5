#include "run/workers.h"

#include <tbb/task_arena.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/thread_handoff.h"
#include "berth/base/mutex.h"

namespace berth::internal {
namespace {

constexpr std::uint32_t kEmpty = kNobody;
constexpr std::uint32_t kStop = kNobody - 1;

// How long a worker searches for work before it sleeps: about the time that waking it would take. On a machine with
// other work that is much longer, because the wait of the standard library yields the processor before it sleeps. So a
// worker that has a processor of its own searches longer; one that has not would keep others from their work.
constexpr int kSpins = 400;
constexpr int kSpinsOfItsOwn = 10'000;

void pause_once() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#else
  std::this_thread::yield();
#endif
}

// A thread that waits inside a step (for a parallel loop of the step) may be given the task of another worker. If it
// became that worker, the step below it on the stack could not continue until the end of the run, which waits for that
// step.
thread_local bool inside_worker = false;

}  // namespace

StepGraph::StepGraph(std::uint32_t step_count, std::uint32_t node_count, std::span<const Edge> edges)
    : steps(step_count), nodes(node_count), first(node_count + 1, 0), targets(edges.size()), waits_for(node_count, 0) {
  for (const Edge& edge : edges) {
    ++first[edge.from + 1];
    ++waits_for[edge.to];
  }
  for (std::uint32_t node = 0; node < nodes; ++node) first[node + 1] += first[node];
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  for (const Edge& edge : edges) targets[next[edge.from]++] = edge.to;
}

// Late tasks may still read this after the run; they access the graph only after passing the gate.
struct Workers::Shared {
  explicit Shared(const StepGraph& steps)
      : graph(&steps), pending(steps.nodes), failed_before(steps.nodes), ready(steps.steps + kMost) {
    for (auto& place : ready) place.store(kEmpty, std::memory_order_relaxed);
  }

  const StepGraph* graph;
  std::vector<std::atomic<std::uint32_t>> pending;       // predecessors that are not done
  std::vector<std::atomic<std::uint8_t>> failed_before;  // some predecessor failed
  std::vector<std::atomic<std::uint32_t>> ready;         // kEmpty, a step, or kStop
  Execute execute = nullptr;
  void* context = nullptr;
  std::uint32_t worker_count = 1;
  int spins = kSpins;
  alignas(64) std::atomic<std::uint32_t> head{0};
  alignas(64) std::atomic<std::uint32_t> tail{0};
  alignas(64) std::atomic<std::uint32_t> remaining{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::atomic<bool> any_failed{false};
  // The gate for tasks: the id of the open run, or 0; and the number of tasks inside or at the gate.
  alignas(64) std::atomic<std::uint64_t> open_run{0};
  std::atomic<std::uint32_t> visitors{0};
  std::uint64_t runs = 0;
  tbb::task_arena arena;

  void prepare() {
    for (std::uint32_t node = 0; node < graph->nodes; ++node)
      pending[node].store(graph->waits_for[node], std::memory_order_relaxed);
    // Only the entries that the last run used: steps that became ready one after the other never entered the list.
    const std::uint32_t used = tail.load() + kMost;
    for (std::uint32_t i = 0; i < used; ++i) ready[i].store(kEmpty, std::memory_order_relaxed);
    if (any_failed.load())
      for (auto& mark : failed_before) mark.store(0, std::memory_order_relaxed);
    any_failed.store(false);
    head.store(0);
    tail.store(0);
    remaining.store(graph->steps);
  }

  void push(std::uint32_t step) {
    const std::uint32_t place = tail.fetch_add(1, std::memory_order_relaxed);
    put(place, step);
  }

  void put(std::uint32_t place, std::uint32_t step) {
    // Sequentially consistent with the count of sleepers: either the worker sees the step or we see the worker.
    ready[place].store(step, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) ready[place].notify_all();
  }

  std::uint32_t take(std::uint32_t place) {
    std::atomic<std::uint32_t>& slot = ready[place];
    for (int i = 0; i < spins; ++i) {
      const std::uint32_t step = slot.load(std::memory_order_acquire);
      if (step != kEmpty) return step;
      pause_once();
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    slot.wait(kEmpty, std::memory_order_seq_cst);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    return slot.load(std::memory_order_acquire);
  }

  // Decrements the counts of the node's successors. One step that became ready is returned through `next`; others are
  // pushed.
  void complete(std::uint32_t node, bool failed, std::uint32_t& next) {
    const std::uint32_t end = graph->first[node + 1];
    for (std::uint32_t i = graph->first[node]; i < end; ++i) {
      const std::uint32_t target = graph->targets[i];
      if (failed) failed_before[target].store(1, std::memory_order_relaxed);
      // A step with a single predecessor needs no counter.
      if (graph->waits_for[target] != 1 && pending[target].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      if (target >= graph->steps)
        complete(target, failed || was_failed_before(target), next);
      else if (next == kEmpty)
        next = target;
      else
        push(target);
    }
  }

  bool was_failed_before(std::uint32_t node) const {
    return any_failed.load(std::memory_order_relaxed) && failed_before[node].load(std::memory_order_relaxed) != 0;
  }

  void work_as(std::uint32_t worker) {
    const bool was_inside = std::exchange(inside_worker, true);
    std::uint32_t finished = 0;
    while (true) {
      const std::uint32_t place = head.fetch_add(1, std::memory_order_relaxed);
      std::uint32_t step = ready[place].load(std::memory_order_acquire);
      if (step == kEmpty) {
        // Before waiting, report completed steps: the last worker to report ends the run.
        if (finished > 0 && remaining.fetch_sub(finished, std::memory_order_acq_rel) == finished) {
          stop();
          break;
        }
        finished = 0;
        step = take(place);
      }
      if (step == kStop) break;
      while (step != kEmpty) {
        const bool skip = was_failed_before(step);
        const bool done = execute(context, step, worker, skip);
        if (!done) any_failed.store(true, std::memory_order_relaxed);
        std::uint32_t next = kEmpty;
        complete(step, !done, next);
        ++finished;
        step = next;
      }
    }
    inside_worker = was_inside;
  }

  // Each worker waits at one place at most, at or after the tail.
  void stop() {
    const std::uint32_t from = tail.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < worker_count; ++i) put(from + i, kStop);
  }

  void visit(std::uint64_t run, std::uint32_t worker) {
    if (inside_worker) return;
    visitors.fetch_add(1, std::memory_order_seq_cst);
    if (open_run.load(std::memory_order_seq_cst) == run) work_as(worker);
    if (visitors.fetch_sub(1, std::memory_order_seq_cst) == 1) visitors.notify_all();
  }
};

namespace {

// First and last of a task: its memory comes from other threads' tasks and goes back to them. The token is the address
// of the task, so that the sanitizer does not take two tasks for ordered.
struct TaskMemory {
  TaskMemory() noexcept { take_over(this); }
  TaskMemory(const TaskMemory&) noexcept : TaskMemory() {}
  ~TaskMemory() { hand_over(this); }
};

}  // namespace

// The open runs. A task that starts after its schedule was destroyed must not keep it alive, so it holds a number and
// looks it up here.
struct Workers::Register {
  Mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<Shared>> alive BERTH_GUARDED_BY(mutex);
  std::uint64_t last BERTH_GUARDED_BY(mutex) = 0;

  static Register& instance() {
    static Register* const one = new Register;  // never destroyed: tasks may come at exit
    return *one;
  }
  // Functions of their own, because the thread-safety analysis leaves constructors and destructors out.
  std::uint64_t add(const std::shared_ptr<Shared>& shared) {
    const MutexLock lock(mutex);
    alive.emplace(++last, shared);
    return last;
  }
  void remove(std::uint64_t id) {
    const MutexLock lock(mutex);
    alive.erase(id);
  }
};

class Workers::Task : TaskMemory {
 public:
  Task(std::uint64_t id, std::uint64_t run, std::uint32_t worker) noexcept : id_(id), run_(run), worker_(worker) {
    hand_over(this);
  }
  Task(const Task& other) noexcept : TaskMemory(), id_(other.id_), run_(other.run_), worker_(other.worker_) {
    hand_over(this);
  }
  void operator()() const {
    take_over(this);
    std::shared_ptr<Shared> shared;
    {
      Register& all = Register::instance();
      const MutexLock lock(all.mutex);
      if (const auto found = all.alive.find(id_); found != all.alive.end()) shared = found->second;
    }
    if (shared != nullptr) shared->visit(run_, worker_);
  }

 private:
  std::uint64_t id_, run_;
  std::uint32_t worker_;
};

Workers::Workers(const StepGraph& graph)
    : shared_(std::make_shared<Shared>(graph)), id_(Register::instance().add(shared_)) {}

Workers::~Workers() {
  Register::instance().remove(id_);
}

void Workers::run(std::uint32_t workers, Execute execute, void* context) {
  Shared& shared = *shared_;
  if (shared.graph->steps == 0) return;
  workers = std::clamp<std::uint32_t>(workers, 1, kMost);
  shared.prepare();
  shared.execute = execute;
  shared.context = context;
  shared.worker_count = workers;
  for (std::uint32_t node = 0; node < shared.graph->steps; ++node)
    if (shared.graph->waits_for[node] == 0) shared.push(node);
  if (workers > 1) {
    const std::uint64_t run = ++shared.runs;
    const std::uint32_t processors = std::thread::hardware_concurrency();
    const auto wanted = static_cast<int>(std::max(workers, processors));
    shared.spins = workers <= processors ? kSpinsOfItsOwn : kSpins;
    if (!shared.arena.is_active() || shared.arena.max_concurrency() < wanted) {
      shared.arena.terminate();
      shared.arena.initialize(wanted, 1);
    }
    shared.open_run.store(run, std::memory_order_seq_cst);
    try {
      for (std::uint32_t worker = 1; worker < workers; ++worker) shared.arena.enqueue(Task(id_, run, worker));
    } catch (const std::exception&) {
      // No memory for more tasks: the existing workers do the work.
    }
  }
  shared.work_as(0);
  if (workers > 1) {
    shared.open_run.store(0, std::memory_order_seq_cst);
    for (std::uint32_t inside = shared.visitors.load(std::memory_order_seq_cst); inside != 0;
         inside = shared.visitors.load(std::memory_order_seq_cst))
      shared.visitors.wait(inside, std::memory_order_seq_cst);
  }
}

}  // namespace berth::internal
