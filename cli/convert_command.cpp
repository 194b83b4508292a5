// `berth convert A B`: a weight file in another format, with a progress bar.
#include <fmt/format.h>

#include "berth/save_weights.h"
#include "commands.h"
#include "progress_bar.h"

namespace berth::cli {

void add_convert_command(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("convert", "Write a weight file as .safetensors or .gguf, byte for byte");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  command->add_option("from", paths->first, "Any weight file that `berth inspect` reads")->required();
  command->add_option("to", paths->second, "The file to write; its ending names the format")->required();
  command->callback([paths, &exit_code] {
    const auto refuse = [&](const Error& error) {
      fmt::print(stderr, "berth convert: {}\n", error.message());
      exit_code = error.code() == Code::kIo ? 1 : 2;
    };
    const auto source = open_weights(paths->first);
    if (!source) return refuse(source.error());
    SaveOptions options;
    {
      ProgressBar bar("writing");
      options.progress = [&bar](const LoadProgress& progress) {
        bar.show(progress.bytes_done, progress.bytes_total);
        return true;
      };
      if (auto done = convert_weights(*source, paths->second, options); !done) return refuse(done.error());
    }
    fmt::print("{}: {} tensors, {}\n", paths->second, source->tensors().size(), format_bytes(source->total_bytes()));
  });
}

}  // namespace berth::cli
