// Hooks on every node of an autograd graph, in C++: what hookcli/hooks/native/timeline.py shows to Python.
//
// Who holds whom: the Timeline and every hook hold the State; the State holds no tensor and no node; the Timeline holds
// nodes and tensors weakly. So nothing lives longer through it, and no cycle runs through a graph.
//
// A hook runs without the GIL, on the thread that called backward or on a device's own. Every field of State that hooks
// write is guarded by its mutex; reductions run outside of it.
#include "hooks.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <tuple>

namespace hookcli {
namespace {

// torch 2.11 holds nodes by std::shared_ptr, later ones by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);
template <typename T>
std::weak_ptr<T> weak(const std::shared_ptr<T>& pointer) { return pointer; }
template <typename T>
c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& pointer) { return c10::weak_intrusive_ptr<T>(pointer); }
using WeakNode = decltype(weak(std::declval<NodePointer>()));

// Breadth-first, each node once: the order that hookcli's Python path walks in.
std::vector<NodePointer> walk(const std::vector<Tensor>& roots, std::unordered_map<const Node*, int64_t>& places) {
  std::vector<NodePointer> found;
  const auto add = [&](const NodePointer& node) {
    if (node && places.emplace(node.get(), static_cast<int64_t>(found.size())).second) found.push_back(node);
  };
  for (const auto& root : roots) add(torch::autograd::impl::gradient_edge(root).function);
  for (size_t i = 0; i < found.size(); ++i) {
    const auto node = found[i];
    for (const auto& edge : node->next_edges()) add(edge.function);
  }
  return found;
}

template <typename Sequence>
auto listed(const Sequence& values) {
  return std::vector<std::decay_t<decltype(*values.begin())>>(values.begin(), values.end());
}

// How many pre- and post-hooks are on the nodes below the roots: for tests that ours are gone.
int64_t hooks_below(std::vector<Tensor> roots) {
  std::unordered_map<const Node*, int64_t> places;
  int64_t count = 0;
  for (const auto& node : walk(roots, places))
    count += static_cast<int64_t>(node->pre_hooks().size() + node->post_hooks().size());
  return count;
}

struct Timeline : torch::CustomClassHolder {
  Timeline(std::vector<Tensor> roots, std::vector<Tensor> leaves, bool statistics, bool on_device_path)
      : state(std::make_shared<State>()) {
    state->statistics = statistics;
    state->on_device_path = on_device_path;
    for (const auto& leaf : leaves) {
      const auto edge = torch::autograd::impl::gradient_edge(leaf);
      LeafState made;
      made.node = edge.function.get();
      made.input_nr = edge.input_nr;
      state->leaves.push_back(made);
      keep_root(leaf, edge.function);
    }
    for (const auto& node : walk(roots, state->places)) {
      state->nodes.emplace_back().name = node->name();
      nodes.push_back(weak(node));
    }
    for (const auto& root : roots) {
      // Passes of several devices start on several threads, and adding capture hooks while another runs them is a race.
      if (root.device() != roots[0].device()) state->capture_hooks = false;
      keep_root(root, torch::autograd::impl::gradient_edge(root).function);
    }
    size_t expected = leaves.size();
    for (const auto& node : nodes)
      if (const auto alive = node.lock()) expected += alive->num_inputs() + alive->num_outputs();
    state->gradients.reserve(expected);
    state->seen.reserve(256);
    attach(roots, leaves);
  }

  ~Timeline() override { detach(); }

  // A leaf's accumulator lives no longer than what points to it, and its hooks with it.
  void keep_root(const Tensor& tensor, const NodePointer& node) {
    if (tensor.is_leaf()) kept.push_back(node);
  }

  void attach(const std::vector<Tensor>& roots, const std::vector<Tensor>& leaves) {
    const auto hook = [this](const Tensor& tensor, auto&& function) {
      tensor_hooks.emplace_back(WeakTensor(tensor.getIntrusivePtr()), tensor.register_hook(function));
    };
    // The first hook of a pass that the engine calls, before a capture at a root that has nothing needed below it.
    for (const auto& root : roots)
      hook(root, [state = state](const at::TensorBase&) { if (state->active) enter_pass(state); });
    for (size_t i = 0; i < leaves.size(); ++i)
      hook(leaves[i], [state = state, i](const at::TensorBase& gradient) { leaf_hook(state, i, gradient); });
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto node = nodes[i].lock();
      auto pre = std::make_unique<PreHook>(state, static_cast<int64_t>(i));
      pre_hooks.push_back(pre.get());
      node->add_pre_hook(std::move(pre));
      post_hooks.push_back(node->add_post_hook(std::make_unique<PostHook>(state, static_cast<int64_t>(i))));
    }
  }

  // Not while a pass runs through the graph, as with PyTorch's own del_post_hook.
  void detach() {
    if (!state->active.exchange(false)) return;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto node = nodes[i].lock();
      if (!node) continue;
      node->del_post_hook(post_hooks[i]);
      // Node has no function for it, but its public accessor gives the list; ours alone leaves it.
      auto& hooks = node->pre_hooks();
      hooks.erase(
          std::remove_if(hooks.begin(), hooks.end(), [&](const auto& hook) { return hook.get() == pre_hooks[i]; }),
          hooks.end());
    }
    for (const auto& [tensor, key] : tensor_hooks)
      if (auto alive = tensor.lock()) Tensor(std::move(alive)).remove_hook(key);
    nodes.clear();
    kept.clear();
    tensor_hooks.clear();
    std::lock_guard<std::mutex> lock(state->mutex);
    state->seen.clear();
  }

  Shared state;
  std::vector<WeakNode> nodes;
  std::vector<NodePointer> kept;
  std::vector<torch::autograd::FunctionPreHook*> pre_hooks;
  std::vector<uintptr_t> post_hooks;
  std::vector<std::pair<WeakTensor, unsigned>> tensor_hooks;

  using NodeRow =
      std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  std::vector<NodeRow> node_rows() {
    std::lock_guard<std::mutex> lock(state->mutex);
    std::vector<NodeRow> rows;
    for (const auto& n : state->nodes)
      rows.emplace_back(n.name, n.order, n.fired, n.began, n.ended, listed(n.grad_outputs), listed(n.grad_inputs));
    return rows;
  }

  std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> leaf_rows() {
    std::lock_guard<std::mutex> lock(state->mutex);
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> rows;
    for (const auto& leaf : state->leaves) rows.emplace_back(leaf.order, leaf.fired, leaf.at, leaf.gradient);
    return rows;
  }

  std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>> capture_rows() {
    std::lock_guard<std::mutex> lock(state->mutex);
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>> rows;
    for (const auto& c : state->captured) rows.emplace_back(c.place, c.node, c.leaf, c.at, c.gradient);
    return rows;
  }

  using GradientRow = std::tuple<
      std::vector<int64_t>, std::string, std::string, std::string, std::vector<double>, std::vector<Tensor>, int64_t>;
  std::vector<GradientRow> gradient_rows() {
    std::lock_guard<std::mutex> lock(state->mutex);
    std::vector<GradientRow> rows;
    for (const auto& g : state->gradients) {
      std::vector<Tensor> on_device;
      if (g.on_device.defined()) on_device.push_back(g.on_device);
      const auto moments = g.moments ? in_order(*g.moments) : std::vector<double>();
      const std::string dtype = c10::toString(g.dtype), why = g.unmeasured ? g.unmeasured : "";
      rows.emplace_back(listed(g.shape), dtype, g.device.str(), why, moments, on_device, g.implied_zeros);
    }
    return rows;
  }

  // passes that ended, when the last of them did, how many firings held the GIL, how many tensors were reduced
  std::tuple<int64_t, int64_t, int64_t, int64_t> passes() {
    std::lock_guard<std::mutex> lock(state->mutex);
    return {state->passes, state->finished, state->held_gil, state->reductions};
  }
};

} // namespace
} // namespace hookcli

TORCH_LIBRARY(hookcli_native, m) {
  using hookcli::Timeline;
  m.def("hooks_below", &hookcli::hooks_below);
  m.def("statistics", &hookcli::statistics_names);
  m.class_<Timeline>("Timeline")
      .def(torch::init<std::vector<at::Tensor>, std::vector<at::Tensor>, bool, bool>())
      .def("detach", [](const c10::intrusive_ptr<Timeline>& self) { self->detach(); })
      .def("nodes", [](const c10::intrusive_ptr<Timeline>& self) { return self->node_rows(); })
      .def("leaves", [](const c10::intrusive_ptr<Timeline>& self) { return self->leaf_rows(); })
      .def("captures", [](const c10::intrusive_ptr<Timeline>& self) { return self->capture_rows(); })
      .def("gradients", [](const c10::intrusive_ptr<Timeline>& self) { return self->gradient_rows(); })
      .def("passes", [](const c10::intrusive_ptr<Timeline>& self) { return self->passes(); });
}
