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
  // A new array over the memory that the object holds, as a library with memory of its own would make it.
  nb::class_<Held>(module, "Held").def("numpy", [](nb::handle self) {
    const nb::ndarray<>& array = nb::cast<Held&>(self).array;
    return nb::ndarray<nb::numpy, float, nb::ndim<2>>(array.data(), {array.shape(0), array.shape(1)}, self);
  });
  module.def("hold", [](nb::ndarray<> array) { return Held{std::move(array)}; });
}
