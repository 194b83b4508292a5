// `berth convert A B`: a weight file in another format, with a progress bar.
#include <fmt/format.h>

#include <algorithm>

#include "berth/weights/save.h"
#include "command_line.h"
#include "commands.h"
#include "interrupt.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {
void add_convert_command(CLI::App& app, int& exit_code) {
  Command command(app, "convert", "Write a weight file as .safetensors or .gguf, byte for byte");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  command.option("from", paths->first, "Any weight file that `berth inspect` reads").required();
  command.option("to", paths->second, "The file to write; its ending names the format").required();
  command.action([paths, &exit_code] {
    int stopped_by = 0;  // the signal
    const auto refuse = [&](const Error& error) {
      exit_code = complain("convert", error.message(),
                           error.code() == Code::kCancelled ? 128 + stopped_by
                           : error.code() == Code::kIo      ? 1
                                                            : 2);
    };
    const auto source = open_weights(paths->first);
    if (!source) return refuse(source.error());
    SaveOptions options;
    Result<void> done;
    {
      const InterruptStop interrupt;
      options.cancel = interrupt.token();
      Progress bar("writing");
      options.progress = [&](const LoadProgress& progress) {
        const double total = static_cast<double>(std::max<std::uint64_t>(progress.bytes_total, 1));
        bar.update(static_cast<double>(progress.bytes_done) / total,
                   fmt::format("{} of {}", format_bytes(progress.bytes_done), format_bytes(progress.bytes_total)));
        return true;
      };
      done = convert_weights(*source, paths->second, options);
      stopped_by = interrupt.signal();
    }
    if (!done) return refuse(done.error());
    fmt::print("{}: {} tensors, {}\n", shown(paths->second), source->tensors().size(),
               format_bytes(source->total_bytes()));
  });
}

}  // namespace berth::cli
