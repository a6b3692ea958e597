// Hooks on every node of an autograd graph, in C++: what hookcli/native/timeline.py shows to Python.
//
// Who holds whom: the Timeline and every hook hold the State; the State holds no tensor and no node; the Timeline holds
// nodes and tensors weakly. So nothing lives longer through it, and no cycle runs through a graph.
//
// A hook runs without the GIL, on the thread that called backward or on a device's own. Every field of State that hooks
// write is guarded by its mutex; reductions run outside of it.
#include "moments.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

extern "C" __attribute__((weak)) int PyGILState_Check(void);

namespace hookcli {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;
using ExecInfo = torch::autograd::GraphTask::ExecInfo;

// torch 2.11 holds nodes by std::shared_ptr, later ones by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);
template <typename T>
std::weak_ptr<T> weak(const std::shared_ptr<T>& pointer) { return pointer; }
template <typename T>
c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& pointer) { return c10::weak_intrusive_ptr<T>(pointer); }
using WeakNode = decltype(weak(std::declval<NodePointer>()));
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Linux and macOS: the same clock as time.perf_counter_ns, so that both paths' times share a zero.
int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int64_t kNone = -1;

struct Gradient {
  std::vector<int64_t> shape;
  std::string dtype, device, unmeasured;  // why there are no statistics, where there could have been
  std::vector<double> moments;
  Tensor on_device;  // moments that still live on an accelerator
  int64_t implied_zeros = 0;
};

struct NodeState {
  std::string name;
  int64_t order = kNone, fired = 0, began = kNone, ended = kNone;
  std::vector<int64_t> grad_outputs, grad_inputs;  // places in State::gradients, kNone where undefined
};

struct LeafState {
  const Node* node = nullptr;
  int64_t input_nr = 0;
  int64_t order = kNone, fired = 0, at = kNone, gradient = kNone;
};

struct Captured {
  int64_t place, node, leaf, at, gradient;  // `place`: in what torch.autograd.grad was asked for
};

struct State {
  std::atomic<bool> active{true}, statistics{true}, on_device_path{false}, capture_hooks{true};
  std::atomic<int64_t> task{kNone}, held_gil{0}, reductions{0};
  std::mutex mutex;
  std::vector<NodeState> nodes;
  std::unordered_map<const Node*, int64_t> places;  // addresses to compare, never followed
  std::vector<LeafState> leaves;
  std::vector<Captured> captured;
  std::vector<Gradient> gradients;
  std::set<int64_t> tasks;
  int64_t next_order = 0, next_leaf = 0, passes = 0, finished = kNone;
  // What one node hands to the next is the same tensor, or a view of the same memory: it is reduced once. The weak pointer
  // keeps the address from being used again, not the memory of the elements.
  struct Seen {
    WeakTensor tensor;
    uint32_t version;
    int64_t gradient;
  };
  std::unordered_map<const c10::TensorImpl*, Seen> seen;
  std::unordered_map<const void*, const c10::TensorImpl*> at_memory;  // the latest in `seen` whose elements start there

  void forget() {
    seen.clear();
    at_memory.clear();
  }
};
using Shared = std::shared_ptr<State>;

// Whether reading the elements here would go through Python, or through a functorch level, or be of no use.
std::string unmeasurable(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_python_dispatch()) return "a tensor subclass in Python";
  if (impl->has_symbolic_sizes_strides()) return "its shape is symbolic";
  if (tensor.key_set().has_any(c10::DispatchKeySet(
          {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize})))
    return "a functorch wrapper";
  return "";
}

void reduce(State& state, const Tensor& gradient, Gradient& into) {
  into.unmeasured = unmeasurable(gradient);
  if (!into.unmeasured.empty() || gradient.is_meta()) return;
  at::NoGradGuard no_grad;
  auto [values, implied] = plain(gradient.detach());
  into.implied_zeros = implied;
  if (values.numel() == 0) return;
  ++state.reductions;
  if (values.device().is_cpu() && !state.on_device_path) {
    const Moments moments = moments_on_cpu(values);
    into.moments.assign(moments.begin(), moments.end());
  } else {
    into.on_device = moments_on_device(values);
  }
}

// Where a gradient's elements start, if they fill one stretch of memory and nothing stands between them and their values.
const void* memory(const Tensor& gradient) {
  const bool plain = gradient.layout() == at::kStrided && gradient.has_storage() && unmeasurable(gradient).empty() &&
      gradient.is_non_overlapping_and_dense() && !gradient.is_neg() && !gradient.is_meta() && gradient.numel() > 0;
  return plain ? gradient.const_data_ptr() : nullptr;
}

uint32_t version_of(const c10::TensorImpl* impl) { return impl->version_counter().current_version(); }

// What was reduced of the same elements, if nothing wrote to them since. The one who was measured must still live: a view
// need not share its version counter, and then only both counters together tell. Call it with the mutex held.
const Gradient* known(const State& state, const Tensor& gradient, const void* start, uint32_t version) {
  const auto latest = start ? state.at_memory.find(start) : state.at_memory.end();
  if (latest == state.at_memory.end()) return nullptr;
  const auto& seen = state.seen.at(latest->second);
  const auto other = seen.tensor.lock();
  if (!other || seen.version != version || version_of(other.get()) != version) return nullptr;
  const bool same = other->numel() == gradient.numel() && other->dtype() == gradient.dtype();
  return same ? &state.gradients[seen.gradient] : nullptr;
}

int64_t record(State& state, const Tensor& gradient) {
  if (!gradient.defined()) return kNone;
  auto* impl = gradient.unsafeGetTensorImpl();
  const bool versioned = !gradient.is_inference();  // else a change could not be told
  const uint32_t version = versioned ? version_of(impl) : 0;
  const void* start = versioned && state.statistics ? memory(gradient) : nullptr;
  Gradient made;
  bool reduced = !state.statistics;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    const auto found = state.seen.find(impl);
    if (versioned && found != state.seen.end() && found->second.version == version) return found->second.gradient;
    if (const auto* same = known(state, gradient, start, version)) {
      made = *same;
      reduced = true;
    }
  }
  made.shape.clear();
  if (!impl->has_symbolic_sizes_strides() && !gradient.is_nested()) made.shape = gradient.sizes().vec();
  made.dtype = c10::toString(gradient.scalar_type());
  made.device = gradient.device().str();
  if (!reduced) reduce(state, gradient, made);
  std::lock_guard<std::mutex> lock(state.mutex);
  state.gradients.push_back(std::move(made));
  const int64_t place = static_cast<int64_t>(state.gradients.size()) - 1;
  if (versioned) {
    state.seen.insert_or_assign(impl, State::Seen{WeakTensor(gradient.getIntrusivePtr()), version, place});
    if (start) state.at_memory[start] = impl;
  }
  return place;
}

std::vector<int64_t> record(State& state, const variable_list& gradients) {
  std::vector<int64_t> places;
  places.reserve(gradients.size());
  for (const auto& gradient : gradients) places.push_back(record(state, gradient));
  return places;
}

void note_gil(State& state) {
  if (PyGILState_Check && PyGILState_Check()) ++state.held_gil;
}

// What torch.autograd.grad's engine captures. Upstream marks the hook deprecated (NOTE [Deprecated capture hooks] in
// graph_task.h) and names tensor hooks as what replaced it; it works in 2.11 to 2.15. It belongs to one pass, so nothing
// of it has to be removed.
struct CaptureHook : ExecInfo::Capture::GradCaptureHook {
  CaptureHook(Shared state, Captured captured) : state(std::move(state)), captured(captured) {}

  Tensor operator()(const Tensor& gradient) override {
    if (state->active) {
      Captured here = captured;
      here.gradient = record(*state, gradient);
      here.at = now();
      std::lock_guard<std::mutex> lock(state->mutex);
      state->captured.push_back(here);
    }
    return gradient;
  }

  Shared state;
  Captured captured;
};

void hook_captures(const Shared& state) {
  const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
  if (!exec_info || !state->capture_hooks) return;
  for (const auto& [node, info] : *exec_info) {
    if (!info.captures_) continue;
    for (auto& capture : *info.captures_) {
      const auto place = state->places.find(node);
      Captured captured{capture.output_idx_, place == state->places.end() ? kNone : place->second, kNone, kNone, kNone};
      for (size_t i = 0; i < state->leaves.size(); ++i)
        if (state->leaves[i].node == node && state->leaves[i].input_nr == capture.input_idx_)
          captured.leaf = static_cast<int64_t>(i);
      capture.DO_NOT_USE_DEPRECATED_register_capture_hook(std::make_unique<CaptureHook>(state, captured));
    }
  }
}

// Once a pass, in the first hook that it reaches: queue_callback is only allowed inside a pass.
void enter_pass(const Shared& state) {
  const int64_t task = torch::autograd::get_current_graph_task_id();
  if (task == kNone || state->task == task) return;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    state->task = task;
    if (!state->tasks.insert(task).second) return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([state] {
    if (!state->active) return;
    const int64_t at = now();
    note_gil(*state);
    std::lock_guard<std::mutex> lock(state->mutex);
    state->finished = at;
    ++state->passes;
    state->forget();
  });
  hook_captures(state);
}

struct PreHook : torch::autograd::FunctionPreHook {
  PreHook(Shared state, int64_t place) : state(std::move(state)), place(place) {}

  variable_list operator()(const variable_list& gradients) override {
    if (state->active) {
      enter_pass(state);
      note_gil(*state);
      auto places = record(*state, gradients);
      std::lock_guard<std::mutex> lock(state->mutex);
      auto& node = state->nodes[place];
      if (!node.fired++) node.order = state->next_order++;
      node.grad_outputs = std::move(places);
      node.grad_inputs.clear();
      node.ended = kNone;
      node.began = now();
    }
    return gradients;
  }

  Shared state;
  int64_t place;
};

struct PostHook : torch::autograd::FunctionPostHook {
  PostHook(Shared state, int64_t place) : state(std::move(state)), place(place) {}

  variable_list operator()(const variable_list& grad_inputs, const variable_list&) override {
    if (state->active) {
      const int64_t ended = now();
      auto places = record(*state, grad_inputs);
      std::lock_guard<std::mutex> lock(state->mutex);
      auto& node = state->nodes[place];
      node.grad_inputs = std::move(places);
      node.ended = ended;
    }
    return grad_inputs;
  }

  Shared state;
  int64_t place;
};

void leaf_hook(const Shared& state, size_t place, const at::TensorBase& gradient) {
  if (!state->active) return;
  enter_pass(state);
  note_gil(*state);
  const int64_t at = now(), recorded = record(*state, Tensor(gradient));
  std::lock_guard<std::mutex> lock(state->mutex);
  auto& leaf = state->leaves[place];
  if (!leaf.fired++) leaf.order = state->next_leaf++;
  leaf.at = at;
  leaf.gradient = recorded;
}

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
    attach(roots, leaves);
  }

  ~Timeline() override { detach(); }

  // A leaf's accumulator lives no longer than what points to it: where that is only a Timeline, its hooks would be lost.
  void keep_root(const Tensor& tensor, const NodePointer& node) {
    if (tensor.is_leaf()) kept.push_back(node);
  }

  void attach(const std::vector<Tensor>& roots, const std::vector<Tensor>& leaves) {
    const auto hook = [this](const Tensor& tensor, auto&& function) {
      tensor_hooks.emplace_back(WeakTensor(tensor.getIntrusivePtr()), tensor.register_hook(function));
    };
    // A capture at a root comes before the root's own pre-hook, so the pass is entered in its tensor hook.
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
    state->forget();
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
      rows.emplace_back(n.name, n.order, n.fired, n.began, n.ended, n.grad_outputs, n.grad_inputs);
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
      rows.emplace_back(g.shape, g.dtype, g.device, g.unmeasured, g.moments, on_device, g.implied_zeros);
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
  m.class_<Timeline>("Timeline")
      .def(torch::init<std::vector<at::Tensor>, std::vector<at::Tensor>, bool, bool>())
      .def("detach", [](const c10::intrusive_ptr<Timeline>& self) { self->detach(); })
      .def("nodes", [](const c10::intrusive_ptr<Timeline>& self) { return self->node_rows(); })
      .def("leaves", [](const c10::intrusive_ptr<Timeline>& self) { return self->leaf_rows(); })
      .def("captures", [](const c10::intrusive_ptr<Timeline>& self) { return self->capture_rows(); })
      .def("gradients", [](const c10::intrusive_ptr<Timeline>& self) { return self->gradient_rows(); })
      .def("passes", [](const c10::intrusive_ptr<Timeline>& self) { return self->passes(); });
}
