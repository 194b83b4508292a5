// The output of one rank, passed on line by line with the rank before each. For use by one thread.
#pragma once

#include <cstdio>
#include <string>

namespace berth::cli {

class LabelledLines {
 public:
  LabelledLines() = default;  // nothing to pass on
  // Takes over the descriptor, the reading end of a pipe.
  LabelledLines(int from, std::FILE* to, unsigned rank);
  LabelledLines(LabelledLines&& other) noexcept;
  LabelledLines& operator=(LabelledLines&& other) noexcept;
  ~LabelledLines();

  bool open() const noexcept { return from_ >= 0; }
  int descriptor() const noexcept { return from_; }

  // Reads what is there and writes the complete lines. Closes at the end of the pipe. False if nothing can be written.
  bool take();
  // Writes what is left in the pipe, without waiting for its end, and a last line that has no end.
  void finish();

 private:
  bool write_lines(bool all);

  int from_ = -1;
  std::FILE* to_ = nullptr;
  std::string label_, text_;
};

}  // namespace berth::cli
