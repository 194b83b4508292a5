// What nanobind's ndarray takes to hold another library's array and to hand it on: the peer of Berth's DLPack rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;

namespace {

struct Held {
  nb::ndarray<> array;
};

}  // namespace

NB_MODULE(nanobind_peer, module) {
  nb::class_<Held>(module, "Held").def("numpy", [](const Held& self) {
    return nb::ndarray<nb::numpy>(self.array);
  });
  module.def("hold", [](nb::ndarray<> array) { return Held{std::move(array)}; });
}
