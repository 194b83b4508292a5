// Synthetic traces of requests to a language model, for the bench of the key-value cache: one family for each way in
// which prefixes return. A trace is drawn from a seed; equal seeds give equal traces.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "berth/kv/cache.h"

namespace berth::bench {

struct Request {
  std::uint64_t time = 0;           // milliseconds
  std::vector<kv::Token> blocks{};  // one number for each block of the prompt; equal numbers are equal prefixes
};
using Trace = std::vector<Request>;

struct Family {
  std::string_view name;
  std::string_view what;
};

constexpr std::array kFamilies{
    Family{"chat", "conversations; a minute to think"},
    Family{"slow chat", "conversations; heavy-tailed times to think, from seconds to an hour"},
    Family{"mixed chat", "some users fast, most slow; returning depends on the user"},
    Family{"agents", "tool calls every few seconds, one system prompt"},
    Family{"tool agents", "many agents, each with a long shared prompt of Zipf popularity, short runs"},
    Family{"system prompts", "200 prompts of Zipf popularity, each with one question"},
    Family{"drifting documents", "questions about documents; which are popular changes"},
    Family{"one-shot documents", "long documents that never return, beside conversations"},
    Family{"bursts", "documents that are asked about several times within a minute, then never"},
    Family{"scan and chat", "conversations, and a stream of prompts without a future"},
    Family{"loop", "the same prompts in turn: worst for the least recently used"},
    Family{"recent", "what was used last is used next: best for the least recently used"},
    Family{"no returns", "nothing ever returns"},
    Family{"many turns", "long conversations of twenty turns and more"},
    Family{"rush hours", "conversations that arrive in waves, with quiet times between"},
    Family{"nested tools", "a common prompt, then that of one of 12 tools, then that of a user; quick steps of agents"},
    Family{"retrieval", "a prompt, then a few of 400 documents in the order of their rank, then a question"},
    Family{"batch jobs", "thousands of short inputs behind one long prompt, then another prompt; chats beside them"},
    Family{"reports", "long documents with some questions over minutes, beside conversations"},
    Family{"phases", "system prompts for a while, then conversations, then a loop"},
};

class TraceDrawer {
 public:
  explicit TraceDrawer(std::uint64_t seed) : random_(seed) {}

  Trace draw(std::string_view family) {
    std::vector<kv::Token> system;
    extend(system, 2);
    if (family == "chat") chats(2, 3000, 60, 0.5, 0.6, system, 8);
    if (family == "slow chat") chats(1, 6000, 300, 1.5, 0.7, system, 8);
    if (family == "mixed chat") {
      chats(0.3, 4000, 15, 0.6, 0.85, system, 4);
      chats(2, 4000, 200, 1.0, 0.35, system, 12);
    }
    if (family == "agents") chats(0.5, 3000, 4, 0.5, 0.9, system, 10);
    if (family == "tool agents") tool_agents();
    if (family == "system prompts") system_prompts();
    if (family == "drifting documents") drifting_documents(system);
    if (family == "one-shot documents") {
      chats(0.7, 3000, 40, 0.7, 0.75, system, 6);
      for (int i = 0; i < 1500; ++i) one_shot(2.0 * i, system, lognormal(40, 0.6));
    }
    if (family == "bursts") bursts(system);
    if (family == "scan and chat") {
      chats(1, 3000, 60, 0.5, 0.6, system, 8);
      for (int i = 0; i < 3000; ++i) one_shot(i, system, 20);
    }
    if (family == "loop") loop();
    if (family == "recent") recent();
    if (family == "no returns")
      for (int i = 0; i < 4000; ++i) one_shot(0.5 * i, {}, lognormal(12, 0.7));
    if (family == "many turns") chats(0.15, 6000, 40, 0.9, 0.95, system, 6);
    if (family == "rush hours")
      for (int wave = 0; wave < 12; ++wave) chats(wave % 2 == 0 ? 0.3 : 4, 400, 60, 0.7, 0.65, system, 8, 400.0 * wave);
    if (family == "nested tools") nested_tools();
    if (family == "retrieval") retrieval(system);
    if (family == "batch jobs") {
      chats(0.5, 3600, 60, 0.7, 0.7, system, 8);
      batch_jobs();
    }
    if (family == "reports") {
      chats(0.5, 3600, 45, 0.7, 0.75, system, 6);
      reports(system);
    }
    if (family == "phases") {
      system_prompts();
      chats(2, 2400, 60, 0.5, 0.6, system, 8, 2400);
      loop(5000, 4000);
    }
    std::stable_sort(trace_.begin(), trace_.end(), [](const Request& a, const Request& b) { return a.time < b.time; });
    return std::exchange(trace_, {});
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double lognormal(double median, double sigma) {
    return median * std::exp(sigma * std::normal_distribution<double>()(random_));
  }
  // 0 to n - 1; the larger the exponent, the more often small ones.
  std::size_t popular(std::size_t n, double exponent) {
    return static_cast<std::size_t>(static_cast<double>(n) * std::pow(uniform(), exponent));
  }
  void extend(std::vector<kv::Token>& blocks, double count) {
    for (double i = 0; i < count; ++i) blocks.push_back(next_++);
  }
  void add(double seconds, std::vector<kv::Token> blocks) {
    trace_.push_back({static_cast<std::uint64_t>(seconds * 1000), std::move(blocks)});
  }
  void one_shot(double seconds, std::vector<kv::Token> blocks, double count) {
    extend(blocks, count);
    add(seconds, std::move(blocks));
  }
  std::vector<std::vector<kv::Token>> texts(std::size_t n, double least, double more) {
    std::vector<std::vector<kv::Token>> all(n);
    for (auto& text : all) extend(text, least + more * uniform());
    return all;
  }

  // One conversation that grows by each turn. Its last block is not full and is computed again.
  void chat(double start, double end, double think, double spread, double stay, std::vector<kv::Token> blocks) {
    for (double at = start; at < end;) {
      add(at, blocks);
      if (uniform() > stay) break;
      at += lognormal(think, spread);
      blocks.pop_back();
      extend(blocks, 1 + std::ceil(lognormal(1.5, 0.6)));
    }
  }
  void chats(double rate, double seconds, double think, double spread, double stay,
             const std::vector<kv::Token>& system, double first, double start = 0) {
    const double end = start + seconds;
    for (double t = start; t < end; t += -std::log(1 - uniform()) / rate) {
      std::vector<kv::Token> blocks = system;
      extend(blocks, std::ceil(lognormal(first, 0.8)));
      chat(t, end, lognormal(think, 0.5), spread, std::min(0.95, stay * lognormal(1, 0.4)), std::move(blocks));
    }
  }
  void tool_agents() {
    const auto prompts = texts(60, 4, 24);
    for (double t = 0; t < 3000; t += -std::log(1 - uniform()) / 2.5) {
      std::vector<kv::Token> blocks = prompts[popular(prompts.size(), 3)];
      extend(blocks, std::ceil(lognormal(2, 0.8)));
      chat(t, 3000, lognormal(5, 0.5), 0.8, 0.6, std::move(blocks));
    }
  }
  void system_prompts() {
    const auto prompts = texts(200, 5, 20);
    for (int i = 0; i < 6000; ++i) one_shot(i * 0.4, prompts[popular(200, 2.5)], 1 + 3 * uniform());
  }
  void drifting_documents(const std::vector<kv::Token>& system) {
    auto documents = texts(3000, 4, 12);
    for (auto& document : documents) document.insert(document.begin(), system.begin(), system.end());
    for (int i = 0; i < 6000; ++i)
      one_shot(i * 0.4, documents[(popular(3000, 4) + static_cast<std::size_t>(i / 20)) % 3000], 1);
  }
  void bursts(const std::vector<kv::Token>& system) {
    for (double t = 0; t < 3000; t += -std::log(1 - uniform()) / 0.6) {
      std::vector<kv::Token> document = system;
      extend(document, std::ceil(lognormal(15, 0.6)));
      const bool popular_one = uniform() < 0.4;
      double at = t;
      for (int n = popular_one ? 3 + static_cast<int>(4 * uniform()) : 1; n > 0; --n, at += lognormal(12, 0.5))
        one_shot(at, document, 1);
    }
  }
  void loop(double start = 0, int count = 6000) {
    const auto prompts = texts(300, 10, 0);
    for (int i = 0; i < count; ++i) add(start + i * 0.5, prompts[static_cast<std::size_t>(i) % 300]);
  }
  void nested_tools() {
    std::vector<kv::Token> common;
    extend(common, 8);
    auto tools = texts(12, 15, 40);
    for (auto& tool : tools) tool.insert(tool.begin(), common.begin(), common.end());
    std::vector<std::vector<kv::Token>> users(12 * 80);
    for (std::size_t i = 0; i < users.size(); ++i) {
      users[i] = tools[i % 12];
      extend(users[i], 2 + 2 * uniform());
    }
    for (double t = 0; t < 3000; t += -std::log(1 - uniform()) / 0.5) {
      std::vector<kv::Token> blocks = users[popular(12, 2) + 12 * popular(80, 2)];
      extend(blocks, std::ceil(lognormal(1.5, 0.5)));
      chat(t, 3000, lognormal(6, 0.5), 0.8, 0.8, std::move(blocks));
    }
  }
  void retrieval(const std::vector<kv::Token>& system) {
    // A document has other blocks after another document, because a block stands for all tokens before it too.
    std::map<std::vector<std::size_t>, std::vector<kv::Token>> prompts;
    for (int i = 0; i < 5000; ++i) {
      std::vector<std::size_t> rank;
      std::vector<kv::Token> blocks = system;
      for (int n = 2 + static_cast<int>(3 * uniform()); n > 0; --n) {
        rank.push_back(popular(400, 3));
        auto& prompt = prompts[rank];
        if (prompt.empty()) extend(prompt = blocks, 2 + 2 * uniform());
        blocks = prompt;
      }
      one_shot(i * 0.5, blocks, 1);
    }
  }
  void batch_jobs() {
    for (double t = 0; t < 3600;) {
      std::vector<kv::Token> prompt;
      extend(prompt, lognormal(20, 0.5));
      for (const double end = t + lognormal(200, 0.7); t < std::min(end, 3600.0); t += lognormal(0.7, 0.5))
        one_shot(t, prompt, 1 + 3 * uniform());
      t += lognormal(60, 1);
    }
  }
  void reports(const std::vector<kv::Token>& system) {
    for (double t = 0; t < 3600; t += -std::log(1 - uniform()) / 0.2) {
      std::vector<kv::Token> document = system;
      extend(document, std::ceil(lognormal(60, 0.6)));
      double at = t;
      for (int n = 1 + static_cast<int>(5 * uniform() * uniform()); n > 0; --n, at += lognormal(90, 0.9))
        one_shot(at, document, 1);
    }
  }
  void recent() {
    std::vector<std::vector<kv::Token>> stack;
    for (int i = 0; i < 6000; ++i) {
      std::vector<kv::Token> blocks;
      const double depth = std::floor(std::pow(uniform(), 4) * 400);
      if (uniform() < 0.2 || depth >= static_cast<double>(stack.size())) {
        extend(blocks, 6 + 8 * uniform());
      } else {
        const auto at = stack.end() - 1 - static_cast<std::ptrdiff_t>(depth);
        blocks = std::move(*at);
        stack.erase(at);
      }
      add(i * 0.4, blocks);
      stack.push_back(std::move(blocks));
    }
  }

  std::mt19937_64 random_;
  kv::Token next_ = 0;
  Trace trace_{};
};

inline Trace draw_trace(std::string_view family, std::uint64_t seed) {
  return TraceDrawer(seed).draw(family);
}

}  // namespace berth::bench
