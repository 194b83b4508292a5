#include "berth/remote/cluster.h"

#include <utility>

#include "base/fields.h"
#include "base/try.h"
#include "remote/member.h"

namespace berth {

using namespace internal::remote;

Cluster::Cluster(std::shared_ptr<Member> member) : member_(std::move(member)) {}

Cluster::~Cluster() = default;

Result<ClusterPtr> Cluster::join(ClusterOptions options) {
  BERTH_TRY_ASSIGN(std::shared_ptr<Member> member, Member::join(std::move(options)));
  return ClusterPtr(new Cluster(std::move(member)));
}

std::uint32_t Cluster::rank() const noexcept {
  return member_->rank();
}

std::uint32_t Cluster::ranks() const noexcept {
  return member_->ranks();
}

std::chrono::milliseconds Cluster::give_up_after() const noexcept {
  return member_->options().give_up_after;
}

Exchange& Cluster::exchange() const noexcept {
  return *member_->options().exchange;
}

Result<DevicePtr> Cluster::device(std::uint32_t rank) {
  return member_->open_device(rank);
}

Result<RemoteWindow> Cluster::open(const Buffer& buffer, Access access) {
  return member_->served().open(buffer, access);
}

Result<void> Cluster::close(const RemoteWindow& window) {
  return member_->close(window);
}

Result<Buffer> Cluster::import(const RemoteWindow& window) {
  return member_->import(window);
}

Result<Timepoint> Cluster::arrived(const RemoteWindow& window, std::uint64_t count) {
  return member_->arrived(window, count);
}

Result<void> Cluster::barrier() {
  return member_->barrier();
}

void Cluster::on_lost(std::function<void(std::uint32_t rank, const Error& why)> callback) {
  member_->engine().on_lost(std::move(callback));
}

std::vector<std::uint32_t> Cluster::lost() const {
  return member_->engine().lost();
}

ClusterCounters Cluster::counters() const {
  Engine& engine = member_->engine();
  ClusterCounters result{.refused_messages = engine.refused_messages(), .lost_ranks = engine.lost().size()};
  const MutexLock lock(engine.mutex);
  result.lent_bytes = member_->served().lent_bytes();
  result.windows = member_->served().windows();
  return result;
}

std::string to_string(const ClusterCounters& counters) {
  return internal::fields({{"refused_messages", counters.refused_messages},
                           {"lent_bytes", counters.lent_bytes},
                           {"windows", counters.windows},
                           {"lost_ranks", counters.lost_ranks}});
}

}  // namespace berth
