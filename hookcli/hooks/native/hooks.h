// The hooks themselves. Each holds the State, and none changes what it is given.
#pragma once

#include "state.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

namespace hookcli {
namespace {

using ExecInfo = torch::autograd::GraphTask::ExecInfo;

// What the engine captures for torch.autograd.grad. Upstream marks the hook deprecated (NOTE [Deprecated capture hooks]
// in graph_task.h) and names tensor hooks as what replaced it; it works in 2.11 to 2.15. It belongs to one pass, so
// nothing of it has to be removed.
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
    state->seen.clear();
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

} // namespace
} // namespace hookcli
