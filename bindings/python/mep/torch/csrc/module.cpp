// The backend's face to Python.
#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "buffer_calls.hpp"
#include "high_throughput.hpp"
#include "low_latency.hpp"
#include "mask.hpp"
#include "process_group.hpp"

namespace {

std::shared_ptr<mep_torch::World> world_or_throw() {
  auto world = mep_torch::World::current();
  TORCH_CHECK(world != nullptr,
              "mep: the default process group is none of MEP's; call init_process_group(\"mep\")");
  return world;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using mep_torch::ProcessGroupMep;
  using without_gil = py::call_guard<py::gil_scoped_release>;
  // Knows c10d::Backend and c10d::Store.
  py::module_::import("torch._C._distributed_c10d");
  const auto backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<ProcessGroupMep, c10::intrusive_ptr<ProcessGroupMep>> group(m, "ProcessGroupMep",
                                                                         backend);
  using Place = mep_torch::World::Place;
  py::class_<Place>(m, "Place")
      .def(py::init<>())
      .def_readwrite("rank", &Place::rank)
      .def_readwrite("size", &Place::size)
      .def_readwrite("timeout", &Place::timeout)
      .def_readwrite("job", &Place::job)
      .def_readwrite("is_replacement", &Place::is_replacement)
      .def_readwrite("joins_later", &Place::joins_later)
      .def_readwrite("max_size", &Place::max_size);
  group
      .def_static("make_world", &ProcessGroupMep::make_world, py::arg("store"), py::arg("place"),
                  py::arg("is_default"), py::arg("backend_name"), without_gil())
      .def_static("make_group", &ProcessGroupMep::make_group, py::arg("store"), py::arg("ranks"),
                  py::arg("rank"), py::arg("name"), py::arg("timeout"), py::arg("backend_name"),
                  without_gil())
#ifdef C10D_BACKEND_HAS_RECONFIGURE
      .def_static(
          "make_reconfigurable",
          [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             std::chrono::milliseconds timeout, const std::string& backend_name) {
            return ProcessGroupMep::make_reconfigurable(store, {rank, size, timeout, {}},
                                                        backend_name);
          },
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
          py::arg("backend_name"), without_gil())
#endif
      // PyTorch calls it on ranks outside of a new group. Members alone make a group of MEP.
      .def("perform_nocolor_split", [](ProcessGroupMep&, const py::object&) {});
  group
      .def("set_active_ranks", &ProcessGroupMep::set_active_ranks, py::arg("mirror"), without_gil())
      .def("active_ranks", &ProcessGroupMep::active_ranks)
      .def("living", &ProcessGroupMep::living, without_gil())
      .def("ranks_of_world", &ProcessGroupMep::ranks_of_world)
      .def("epoch", &ProcessGroupMep::epoch, without_gil())
      .def("agree", &ProcessGroupMep::agree, py::arg("word"), without_gil())
      .def("peers_are_ready", &ProcessGroupMep::peers_are_ready, py::arg("ranks"), without_gil())
      .def("recover", &ProcessGroupMep::recover, py::arg("ranks"), py::arg("timeout"),
           without_gil())
      .def("join", &ProcessGroupMep::join, without_gil())
      .def("deactivate", &ProcessGroupMep::deactivate, py::arg("ranks"), without_gil());
  mep_torch::add_buffer_streams(m);
  mep_torch::add_mask(m);
  mep_torch::add_low_latency(m);
  mep_torch::add_high_throughput(m);
  m.def("lost_ranks", &ProcessGroupMep::lost_ranks, py::arg("work"));
  m.def("shut_all_down", &ProcessGroupMep::shut_all_down, without_gil());
  m.def(
      "living",
      [] {
        const auto world = world_or_throw();
        world->catch_up();
        return world->comms().collectives->living();
      },
      without_gil());
  m.def(
      "recover",
      [](const std::vector<int32_t>& ranks, std::chrono::milliseconds timeout) {
        const auto world = world_or_throw();
        int32_t admitted = 0;
        if (!world->recover(ranks, timeout, &admitted)) {
          mep_torch::check(MEP_ERR_TIMEOUT, "recover ranks");
        }
        mep_torch::settle(*world->comms().collectives, timeout);
        return admitted;
      },
      py::arg("ranks"), py::arg("timeout"), without_gil());
}
