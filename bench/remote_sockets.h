// Plain sockets that remote_bench measures REMOTE against. Not thread-safe.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "remote_job.h"

namespace berth::bench {

// A plain socket on the loopback interface, with a receiving thread.
class Socket {
 public:
  explicit Socket(std::size_t bytes) : received_(bytes) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    sender_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sender_, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
    receiver_ = accept(listener, nullptr, nullptr);
    close(listener);
    thread_ = std::thread([this] {
      while (true) {
        std::size_t at = 0;
        while (at < received_.size()) {
          const ssize_t got = recv(receiver_, received_.data() + at, received_.size() - at, 0);
          if (got <= 0) return;
          at += static_cast<std::size_t>(got);
        }
        if (write(receiver_, "k", 1) != 1) return;
      }
    });
  }
  ~Socket() {
    shutdown(sender_, SHUT_RDWR);
    thread_.join();
    close(sender_);
    close(receiver_);
  }
  void send_all(const Bytes& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(sender_, bytes.data() + at, bytes.size() - at, 0);
      if (sent <= 0) std::abort();
      at += static_cast<std::size_t>(sent);
    }
    char answer = 0;
    if (read(sender_, &answer, 1) != 1) std::abort();
  }

 private:
  Bytes received_;
  int sender_ = -1, receiver_ = -1;
  std::thread thread_;
};

// Plain sockets between the two namespaces, both ways at once: what is left of the link then, beside whatever else this
// machine does. The other side is this program with --flood.
namespace flood {

constexpr int kPort = 5999;  // the namespace has no other user

inline void both_ways(int connection, std::size_t bytes) {
  const Bytes source(kMiB);
  Bytes target(kMiB);
  std::thread sender([&] {
    for (std::size_t left = bytes; left > 0;) {
      const ssize_t sent = send(connection, source.data(), std::min(left, source.size()), 0);
      if (sent <= 0) std::abort();
      left -= static_cast<std::size_t>(sent);
    }
  });
  for (std::size_t left = bytes; left > 0;) {
    const ssize_t got = recv(connection, target.data(), std::min(left, target.size()), 0);
    if (got <= 0) std::abort();
    left -= static_cast<std::size_t>(got);
  }
  sender.join();
}

inline sockaddr_in address_of(int machine) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  if (inet_pton(AF_INET, fmt::format("10.213.77.{}", machine + 1).c_str(), &address.sin_addr) != 1) std::abort();
  return address;
}

// A round for each number of bytes that comes.
inline int serve() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = address_of(1);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(listener, 1) != 0)
    return 1;
  const int connection = accept(listener, nullptr, nullptr);
  std::uint64_t bytes = 0;
  while (recv(connection, &bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes) both_ways(connection, bytes);
  return 0;
}

class Client {
 public:
  explicit Client(const std::string& other)
      : server_(popen(fmt::format("ip netns exec {} {} --flood", other, own_path()).c_str(), "w")) {
    const sockaddr_in address = address_of(1);
    for (int attempt = 0; attempt < 1000; ++attempt) {
      connection_ = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(connection_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
      close(connection_);
      std::this_thread::sleep_for(10ms);
    }
    std::abort();
  }
  ~Client() {
    close(connection_);
    pclose(server_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The time that `bytes` take both ways at once.
  double round(std::uint64_t bytes) {
    if (send(connection_, &bytes, sizeof bytes, 0) != sizeof bytes) std::abort();
    const auto start = Clock::now();
    both_ways(connection_, bytes);
    return seconds_since(start);
  }

 private:
  FILE* const server_;
  int connection_ = -1;
};

}  // namespace flood

}  // namespace berth::bench
