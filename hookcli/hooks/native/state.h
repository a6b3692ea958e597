// What the hooks of one Timeline write to, and how a gradient is recorded there.
#pragma once

#include "moments.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

extern "C" __attribute__((weak)) int PyGILState_Check(void);

namespace hookcli {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::variable_list;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Linux and macOS: the same clock as time.perf_counter_ns, so that both paths' times share a zero.
int64_t now() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

constexpr int64_t kNone = -1;

// Records are written without allocating: a small block of ours that outlives the gradients around it would keep malloc
// from using their memory for the next ones, and the page faults of fresh memory cost more than the hooks.
using Shape = c10::SmallVector<int64_t, 5>;
using Places = c10::SmallVector<int64_t, 4>;  // in State::gradients, kNone where undefined

struct Gradient {
  Shape shape;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  const char* unmeasured = nullptr;  // why there are no statistics, where there could have been
  std::optional<Moments> moments;
  Tensor on_device;  // moments that still live on an accelerator
  int64_t implied_zeros = 0;
};

struct NodeState {
  std::string name;
  int64_t order = kNone, fired = 0, began = kNone, ended = kNone;
  Places grad_outputs, grad_inputs;
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
  // What one node hands to the next is the same tensor, or a view of the same memory: it is reduced once. The weak
  // pointer keeps the address from being used again, not the memory of the elements. A pass has few gradients alive.
  struct Seen {
    WeakTensor tensor;
    const c10::TensorImpl* impl;
    const void* start;  // of its elements, in the latest entry for them alone
    uint32_t version;
    int64_t gradient;
  };
  std::vector<Seen> seen;
};
using Shared = std::shared_ptr<State>;

// Whether reading the elements here would go through Python, or through a functorch level, or be of no use.
const char* unmeasurable(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_python_dispatch()) return "a tensor subclass in Python";
  if (impl->has_symbolic_sizes_strides()) return "its shape is symbolic";
  using Key = c10::DispatchKey;
  const c10::DispatchKeySet wrappers({Key::FuncTorchBatched, Key::FuncTorchGradWrapper, Key::Functionalize});
  return tensor.key_set().has_any(wrappers) ? "a functorch wrapper" : nullptr;
}

void reduce(State& state, const Tensor& gradient, Gradient& into) {
  into.unmeasured = unmeasurable(gradient);
  if (into.unmeasured || gradient.is_meta()) return;
  at::NoGradGuard no_grad;
  const auto [values, implied] = plain(gradient);
  into.implied_zeros = implied;
  if (values.numel() == 0) return;
  ++state.reductions;
  if (values.device().is_cpu() && !state.on_device_path) {
    into.moments = moments(Elements{values});
  } else {
    into.on_device = moments_on_device(values);
  }
}

// Where a gradient's elements start, if they fill one stretch of memory and are the values themselves.
const void* memory(const Tensor& gradient) {
  const bool plain = gradient.layout() == at::kStrided && gradient.has_storage() && !unmeasurable(gradient) &&
      gradient.is_non_overlapping_and_dense() && !gradient.is_neg() && !gradient.is_meta() && gradient.numel() > 0;
  return plain ? gradient.const_data_ptr() : nullptr;
}

uint32_t version_of(const c10::TensorImpl* impl) { return impl->version_counter().current_version(); }

// What was recorded of this tensor. Call it with the mutex held, as the three below.
int64_t recorded(const State& state, const c10::TensorImpl* impl, uint32_t version) {
  for (const auto& seen : state.seen)
    if (seen.impl == impl && seen.version == version) return seen.gradient;
  return kNone;
}

// What was reduced of the same elements, if nothing wrote to them since. The tensor that was measured must still live:
// a view need not share its version counter, and then only both counters together tell.
const Gradient* reduced(const State& state, const Tensor& gradient, const void* start, uint32_t version) {
  for (const auto& seen : state.seen) {
    if (!start || seen.start != start) continue;
    const auto other = seen.tensor.lock();
    const bool same = other && seen.version == version && version_of(other.get()) == version &&
        other->numel() == gradient.numel() && other->dtype() == gradient.dtype();
    return same ? &state.gradients[seen.gradient] : nullptr;
  }
  return nullptr;
}

// Soon after a tensor died, because what is left of it while it is remembered lies in malloc's way as well.
void forget_dead(State& state) {
  const auto gone = [](const State::Seen& one) { return one.tensor.expired(); };
  state.seen.erase(std::remove_if(state.seen.begin(), state.seen.end(), gone), state.seen.end());
}

void remember(State& state, const Tensor& gradient, const void* start, uint32_t version, int64_t place) {
  const auto* impl = gradient.unsafeGetTensorImpl();
  const auto same = [impl](const State::Seen& one) { return one.impl == impl; };
  state.seen.erase(std::remove_if(state.seen.begin(), state.seen.end(), same), state.seen.end());
  for (auto& one : state.seen)
    if (one.start == start) one.start = nullptr;
  state.seen.push_back({WeakTensor(gradient.getIntrusivePtr()), impl, start, version, place});
}

int64_t record(State& state, const Tensor& gradient) {
  if (!gradient.defined()) return kNone;
  auto* impl = gradient.unsafeGetTensorImpl();
  const bool versioned = !gradient.is_inference();  // else a change could not be told
  const uint32_t version = versioned ? version_of(impl) : 0;
  const void* start = versioned && state.statistics ? memory(gradient) : nullptr;
  Gradient made;
  bool known = !state.statistics;
  if (versioned) {
    std::lock_guard<std::mutex> lock(state.mutex);
    forget_dead(state);
    if (const int64_t place = recorded(state, impl, version); place != kNone) return place;
    if (const auto* same = reduced(state, gradient, start, version)) {
      made = *same;
      known = true;
    }
  }
  const bool has_shape = !impl->has_symbolic_sizes_strides() && !gradient.is_nested();
  made.shape = has_shape ? Shape(gradient.sizes().begin(), gradient.sizes().end()) : Shape();
  made.dtype = gradient.scalar_type();
  made.device = gradient.device();
  if (!known) reduce(state, gradient, made);
  std::lock_guard<std::mutex> lock(state.mutex);
  state.gradients.push_back(std::move(made));
  const int64_t place = static_cast<int64_t>(state.gradients.size()) - 1;
  if (versioned) remember(state, gradient, start, version, place);
  return place;
}

Places record(State& state, const variable_list& gradients) {
  Places places;
  for (const auto& gradient : gradients) places.push_back(record(state, gradient));
  return places;
}

void note_gil(State& state) {
  if (PyGILState_Check && PyGILState_Check()) ++state.held_gil;
}

} // namespace
} // namespace hookcli
