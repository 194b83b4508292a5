// Two network namespaces, "machines" with an address each, joined by a link of limited speed that can be cut. Traffic
// stays on this machine. Needs the right to make namespaces (root) and the programs ip and tc; removed with the object.
// Not thread-safe.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace berth::test {

class NetworkNamespaces {
 public:
  // `rate` as tc writes it: "1gbit".
  explicit NetworkNamespaces(const std::string& rate) {
    static int number = 0;
    const std::string tail = std::to_string(getpid()) + "x" + std::to_string(number++);
    names_[0] = "berthA" + tail;
    names_[1] = "berthB" + tail;
    made_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
            run("ip -n " + names_[0] + " link add berth0 type veth peer name berth0 netns " + names_[1]);
    for (int i = 0; made_ && i < 2; ++i) {
      const std::string at = "ip -n " + names_[i];
      made_ = run(at + " address add 10.213.77." + std::to_string(i + 1) + "/24 dev berth0") &&
              run(at + " link set lo up") && run(at + " link set berth0 up") &&
              run("tc -n " + names_[i] + " qdisc add dev berth0 root " + limit(rate));
    }
    // The kernel takes a moment to notice that both ends are up.
    for (int i = 0; made_ && i < 2; ++i)
      made_ = run("for i in $(seq 200); do ip -n " + names_[i] +
                  " link show berth0 | grep -q 'state UP' && exit 0; sleep 0.05; done; exit 1");
  }
  ~NetworkNamespaces() {
    for (const std::string& name : names_) static_cast<void>(run("ip netns del " + name));
  }
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  bool made() const { return made_; }
  static const char* why_not() {
    return "network namespaces cannot be made here: run as root, with iproute2 installed";
  }

  const std::string& name(int machine) const { return names_[machine]; }
  // What runs a program on a machine.
  std::vector<std::string> on(int machine) const { return {"ip", "netns", "exec", names_[machine]}; }
  static const char* interface() { return "berth0"; }

  // As if the cable were pulled in the middle: both ends still believe that there is a link.
  bool cut() { return cut(names_[0], names_[1]); }
  static bool cut(const std::string& first, const std::string& second) {
    bool done = true;
    // No packet fits into a bucket of one byte.
    for (const std::string& name : {first, second})
      done = run("tc -n " + name + " qdisc replace dev berth0 root tbf rate 8bit burst 1 latency 1ms") && done;
    return done;
  }
  // Ends a cut. What was sent meanwhile is lost.
  static bool heal(const std::string& first, const std::string& second, const std::string& rate) {
    bool done = true;
    for (const std::string& name : {first, second})
      done = run("tc -n " + name + " qdisc replace dev berth0 root " + limit(rate)) && done;
    return done;
  }

 private:
  static std::string limit(const std::string& rate) { return "tbf rate " + rate + " burst 256kb latency 100ms"; }
  static bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  std::string names_[2];
  bool made_ = false;
};

}  // namespace berth::test
