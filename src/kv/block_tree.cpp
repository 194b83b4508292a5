#include "kv/block_tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace berth::internal::kv_cache {
namespace {

__extension__ using Wide = unsigned __int128;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  // The product is never zero for odd b, and both halves of it depend on all bits of a.
  const auto product = static_cast<Wide>(a ^ 0x9e37'79b9'7f4a'7c15u) * (b | 1);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::uint32_t hash_block(std::uint32_t before, std::span<const Token> tokens) noexcept {
  std::uint64_t a = mix(before, 0xd6e8'feb8'6659'fd93u), b = a ^ 0xa076'1d64'78bd'642fu;
  std::size_t at = 0;
  for (; at + 4 <= tokens.size(); at += 4) {
    std::uint64_t words[2];
    std::memcpy(words, &tokens[at], sizeof words);
    a = mix(a ^ words[0], 0xe703'7ed1'a0b4'28dbu);
    b = mix(b ^ words[1], 0x8ebc'6af0'9c88'c6e3u);
  }
  for (; at < tokens.size(); ++at) a = mix(a ^ static_cast<std::uint32_t>(tokens[at]), 0x5899'65cc'7537'4cc3u);
  const std::uint64_t hash = mix(a ^ (b << 1 | b >> 63), 0x1d8e'4e27'c47d'124fu);
  return static_cast<std::uint32_t>(hash >> 32);
}

std::uint32_t BlockTree::hash_of_salt(std::uint64_t salt) noexcept {
  return static_cast<std::uint32_t>(mix(salt, 0xeb44'acca'b455'd165u));
}

Result<void> BlockTree::reserve(std::uint32_t nodes, std::uint32_t block_tokens, EvictionPolicy& policy) {
  const std::uint32_t lists = policy.lists();
  if (lists == 0 || lists > 256)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "an eviction policy has 1 to 256 lists, not {}", lists);
  storage_.resize(nodes);
  tokens_.resize(std::size_t{nodes} * block_tokens);
  buckets_.assign(std::max<std::size_t>(1, std::size_t{nodes} / 2), kNoNode);
  list_storage_.resize(lists);
  records_ = storage_;
  lists_ = list_storage_;
  block_tokens_ = block_tokens;
  policy_ = &policy;
  roots_.push_back({.salt = 0, .users = 1});
  root_of_.emplace(0, kRootBit);
  return policy.reserve(nodes);
}

Node BlockTree::find_root(std::uint64_t salt) const {
  const auto found = root_of_.find(salt);
  return found == root_of_.end() ? kNoNode : found->second;
}

Node BlockTree::enter_root(std::uint64_t salt) {
  if (const auto found = root_of_.find(salt); found != root_of_.end()) {
    ++roots_[found->second & ~kRootBit].users;
    return found->second;
  }
  Node root = static_cast<Node>(roots_.size()) | kRootBit;
  if (!free_roots_.empty()) {
    root = free_roots_.back();
    free_roots_.pop_back();
    roots_[root & ~kRootBit] = {salt, 1};
  } else {
    roots_.push_back({salt, 1});
    free_roots_.reserve(roots_.size());  // leave_root() must not allocate
  }
  root_of_.emplace(salt, root);
  return root;
}

void BlockTree::leave_root(Node root) noexcept {
  Root& entry = roots_[root & ~kRootBit];
  if (--entry.users != 0) return;
  root_of_.erase(entry.salt);
  free_roots_.push_back(root);
}

Node BlockTree::find(Node parent, std::uint32_t hash, std::span<const Token> tokens) const noexcept {
  for (Node node = buckets_[bucket(hash)]; node != kNoNode; node = records_[node].chain) {
    const BlockRecord& record = records_[node];
    if (record.hash == hash && record.parent == parent &&
        std::memcmp(&tokens_[std::size_t{node} * block_tokens_], tokens.data(), block_tokens_ * sizeof(Token)) == 0)
      return node;
  }
  return kNoNode;
}

void BlockTree::insert(Node node, Node parent, std::uint32_t hash) {
  BlockRecord& record = records_[node];
  record.parent = parent;
  record.hash = hash;
  Node& head = buckets_[bucket(hash)];
  record.chain = head;
  head = node;
  record.children = 0;
  set_state(node, kSharedBlock);
  ++indexed_;
  if ((parent & kRootBit) != 0)
    ++roots_[parent & ~kRootBit].users;
  else
    ++records_[parent].children;  // the sequence that inserts uses the parent, so it is not idle
}

void BlockTree::remove(Node node) noexcept {
  BlockRecord& record = records_[node];
  leave_list(node);
  Node* at = &buckets_[bucket(record.hash)];
  while (*at != node) at = &records_[*at].chain;
  *at = record.chain;
  --indexed_;
  record.references = record.children = 0;
  set_state(node, kPrivateBlock);
  const Node parent = record.parent;
  if ((parent & kRootBit) != 0)
    leave_root(parent);
  else if (--records_[parent].children == 0 && records_[parent].references == 0)
    make_idle(parent, node);
}

void BlockTree::start(Node node) noexcept {
  BlockRecord& record = records_[node];
  record = {};
  record.references = 1;
  set_state(node, kPrivateBlock);
  ++pinned_;
}

void BlockTree::add_reference(Node node) noexcept {
  BlockRecord& record = records_[node];
  if (state(node) == kIdleBlock) {
    leave_list(node);
    record.references = record.children = 0;
    set_state(node, kSharedBlock);
  }
  pinned_ += record.references == 0 ? 1 : 0;
  ++record.references;
}

bool BlockTree::drop_reference(Node node) noexcept {
  BlockRecord& record = records_[node];
  if (--record.references != 0) return false;
  --pinned_;
  if (state(node) == kPrivateBlock) return true;
  if (record.children == 0) make_idle(node, kNoNode);
  return false;
}

void BlockTree::make_idle(Node node, Node evicted) noexcept {
  BlockRecord& record = records_[node];
  const EvictionPolicy::Place place = policy_->place(node, evicted, *this);
  record.notes.list = static_cast<std::uint8_t>(place.list);
  List& list = lists_[place.list];
  set_state(node, kIdleBlock);
  ++idle_;
  // `references` is the older neighbour, `children` the newer one.
  record.children = place.newer;
  Node& newer_end = place.newer == kNoNode ? list.newest : records_[place.newer].references;
  record.references = std::exchange(newer_end, node);
  (record.references == kNoNode ? list.oldest : records_[record.references].children) = node;
}

void BlockTree::leave_list(Node node) noexcept {
  policy_->leaves(node, *this);
  const BlockRecord& record = records_[node];
  List& list = lists_[record.notes.list];
  (record.references == kNoNode ? list.oldest : records_[record.references].children) = record.children;
  (record.children == kNoNode ? list.newest : records_[record.children].references) = record.references;
  --idle_;
}

std::size_t BlockTree::bookkeeping_bytes() const noexcept {
  return storage_.capacity() * sizeof(BlockRecord) + buckets_.capacity() * sizeof(Node) +
         list_storage_.capacity() * sizeof(List) + roots_.capacity() * sizeof(Root) + sizeof *this;
}

Result<void> BlockTree::check() const {
  const auto broken = [](const char* what, Node node) {
    return Error(Code::kInvalidData, Layer::kAllocator, what, node);
  };
  std::vector<std::uint32_t> children(storage_.size());
  std::uint64_t indexed = 0, idle = 0, pinned = 0;
  for (Node node = 0; node < nodes(); ++node) {
    const BlockRecord& record = storage_[node];
    if (state(node) == kFreeBlock) continue;
    pinned += references(node) != 0 ? 1 : 0;
    if (!in_index(node)) continue;
    ++indexed;
    idle += state(node) == kIdleBlock ? 1 : 0;
    if ((record.parent & kRootBit) == 0) {
      if (!in_index(record.parent)) return broken("block {} hangs on a block that is not in the index", node);
      if (references(node) != 0 && references(record.parent) == 0)
        return broken("block {} is in use and the block before it is not", node);
      ++children[record.parent];
    }
    const Token* const own = tokens(node);
    if (find(record.parent, record.hash, {own, block_tokens_}) != node)
      return broken("block {} is not found by its own tokens", node);
    const std::uint32_t before =
        (record.parent & kRootBit) != 0 ? root_hash(record.parent) : storage_[record.parent].hash;
    if (hash_block(before, {own, block_tokens_}) != record.hash) return broken("block {} has another hash", node);
  }
  for (Node node = 0; node < nodes(); ++node) {
    if (in_index(node) && this->children(node) != children[node])
      return broken("block {} counts its children wrongly", node);
    if (state(node) == kSharedBlock && references(node) == 0 && children[node] == 0)
      return broken("block {} is idle and in no list", node);
  }
  std::uint64_t listed = 0;
  for (const List& list : list_storage_) {
    Node before = kNoNode;
    for (Node node = list.oldest; node != kNoNode; node = storage_[node].children) {
      if (state(node) != kIdleBlock || storage_[node].references != before || ++listed > idle)
        return broken("the list of idle blocks is broken at block {}", node);
      before = node;
    }
    if (list.newest != before) return broken("the list of idle blocks does not end at block {}", list.newest);
  }
  if (indexed != indexed_ || idle != idle_ || idle != listed || pinned != pinned_)
    return Error(Code::kInvalidData, Layer::kAllocator, "{} blocks are cached, {} idle ({} in lists) and {} in use",
                 indexed, idle, listed, pinned);
  return {};
}

}  // namespace berth::internal::kv_cache
