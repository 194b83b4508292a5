// The ranks of a job as one memory. A process joins with an Exchange (exchange.h), by which the ranks find each other;
// afterwards the memory that rank 3 lends is the device "REMOTE:3", and buffers of any rank can be opened to the
// others. Copies go through queues as on every device. The transport is UCX, which is opened at run time.
//
//   auto cluster = berth::Cluster::join({.lends = 8_GiB}).value();       // on every rank
//   auto far = berth::Buffer::allocate(berth::device("REMOTE:1").value(), berth::f32, {1 << 20}).value();
//   far.copy_from(near).value();
//
// Failure: every call succeeds or fails within give_up_after without a sign of life from the rank it needs. A lost rank
// is lost for good: what needs it fails with kDeviceLost, which names it; its memory can be released, and memory that
// its queues used is freed when they are destroyed; everything else goes on.
//
// Security: other ranks prove that they know the token of the job before anything they send is believed. The transport
// itself guards nothing: who can reach its port can read and write the memory of the process. It listens on the
// loopback interface unless another one is named; name only interfaces of networks whose every machine you trust. See
// docs/scale_out.md.
//
// Any thread may call. Devices and buffers keep what they need of the cluster alive. The child of a fork() must not use
// it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/memory/device.h"
#include "berth/memory/kernel.h"
#include "berth/memory/timepoint.h"
#include "berth/remote/exchange.h"
#include "berth/remote/window.h"
#include "berth/tensor/buffer.h"

namespace berth {

namespace internal::remote {
class Member;
}  // namespace internal::remote

struct ClusterOptions {
  ExchangePtr exchange{};  // null: make_job_exchange()
  // Network interfaces to use, such as {"eth0"}. Empty: loopback, for ranks on one machine.
  std::vector<std::string> interfaces{};
  // Names of UCX's transports, such as "rc,cma,tcp" for InfiniBand. Empty: the variable UCX_TLS, otherwise TCP and what
  // processes on one machine can use.
  std::string transports{};
  // How long a rank may owe an answer without any sign of life. Also limits join() and barrier().
  std::chrono::milliseconds give_up_after{30'000};
  // Bytes of this process that other ranks may use, in total. They are reserved, and take memory when they are used.
  std::size_t lends = 0;
  // Bytes that each REMOTE device leases of its rank, once. 0: an equal share of what the rank lends.
  std::size_t lease = 0;
};

struct ClusterCounters {
  std::uint64_t refused_messages = 0;  // without the token of the job, or damaged
  std::size_t lent_bytes = 0;          // leased to other ranks
  std::size_t windows = 0;             // open
  std::size_t lost_ranks = 0;
};
std::string to_string(const ClusterCounters& counters);

class Cluster {
 public:
  // Joins the job of the exchange and waits for all its ranks. Call it once on every rank. kDeviceUnavailable: no UCX,
  // with the command that installs it; an interface that does not exist; ranks that did not join in time, which are
  // named. kInvalidData: a rank has another token, another version of Berth or UCX, or is on another machine while this
  // cluster uses the loopback interface. kInvalidArgument: give_up_after is not positive.
  static Result<std::shared_ptr<Cluster>> join(ClusterOptions options = {});
  // Leaves the cluster when no device or buffer of it is left. The other ranks then find this one lost.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  std::uint32_t rank() const noexcept;
  std::uint32_t ranks() const noexcept;
  std::chrono::milliseconds give_up_after() const noexcept;
  // What the cluster was joined with; for small values that ranks tell each other.
  Exchange& exchange() const noexcept;

  // The memory that another rank lends: the device "REMOTE:rank". Opening takes the lease. kDeviceUnavailable for this
  // rank itself and for ranks that do not exist; kDeviceLost.
  Result<DevicePtr> device(std::uint32_t rank);

  // Lets other ranks access a buffer of host memory, until close(). Each byte should have one writer at a time: what
  // queues of two processes do is not ordered. kNotCpuAccessible; kReadOnly if others may write read-only memory;
  // kUnsupported for evictable memory, whose pages may go.
  // The buffer's memory stays where it is and is kept alive meanwhile.
  Result<RemoteWindow> open(const Buffer& buffer, Access access = Access::kReadWrite);

  // Ends all access. Waits until the ranks that imported the window have nothing in flight; from then on their calls
  // fail with kNotFound. kNotFound if it is not open here.
  Result<void> close(const RemoteWindow& window);

  // A window of another rank as a buffer on "REMOTE:rank". Asks the owner. kNotFound for a stale window;
  // kInvalidArgument for one of this rank; kDeviceLost.
  Result<Buffer> import(const RemoteWindow& window);

  // The timepoint at which `count` submits that wrote to the window, of all ranks together since it was opened, have
  // arrived in its memory. Pass it to wait() or Queue::wait_for. Waiting fails with kDeviceLost if a rank that imported
  // the window is lost, and with kDeviceUnavailable if nothing arrives for give_up_after. kNotFound if the window is
  // not open here.
  Result<Timepoint> arrived(const RemoteWindow& window, std::uint64_t count);

  // Waits until every rank has called it as often as this one. Counts arrivals at rank 0. kDeviceLost if a rank is
  // lost; kDeviceUnavailable, with the ranks that are missing (rank 0 knows them), after give_up_after.
  Result<void> barrier();

  // Calls back once for each lost rank, also for those lost before the call. Runs on a thread of the cluster: it must
  // not wait for other ranks, and must not destroy the last handle of the cluster.
  void on_lost(std::function<void(std::uint32_t rank, const Error& why)> callback);
  // The lost ranks, in the order of their loss.
  std::vector<std::uint32_t> lost() const;

  ClusterCounters counters() const;

 private:
  explicit Cluster(std::shared_ptr<internal::remote::Member> member);
  const std::shared_ptr<internal::remote::Member> member_;
};
using ClusterPtr = std::shared_ptr<Cluster>;

}  // namespace berth
