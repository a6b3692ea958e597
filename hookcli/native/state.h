// What the hooks of one Timeline write to, and how a gradient is recorded there.
#pragma once

#include "moments.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <chrono>
#include <memory>
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
  // What one node hands to the next is the same tensor, or a view of the same memory: it is reduced once. The weak
  // pointer keeps the address from being used again, not the memory of the elements.
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
  using Key = c10::DispatchKey;
  const c10::DispatchKeySet wrappers({Key::FuncTorchBatched, Key::FuncTorchGradWrapper, Key::Functionalize});
  if (tensor.key_set().has_any(wrappers)) return "a functorch wrapper";
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

// Where a gradient's elements start, if they fill one stretch of memory and are the values themselves.
const void* memory(const Tensor& gradient) {
  const bool plain = gradient.layout() == at::kStrided && gradient.has_storage() && unmeasurable(gradient).empty() &&
      gradient.is_non_overlapping_and_dense() && !gradient.is_neg() && !gradient.is_meta() && gradient.numel() > 0;
  return plain ? gradient.const_data_ptr() : nullptr;
}

uint32_t version_of(const c10::TensorImpl* impl) { return impl->version_counter().current_version(); }

// What was reduced of the same elements, if nothing wrote to them since. The tensor that was measured must still live:
// a view need not share its version counter, and then only both counters together tell. Call it with the mutex held.
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

} // namespace
} // namespace hookcli
