// Runs the blocks of a piece of work in several threads: PyTorch's own, where its OpenMP runtime can be called, else some
// of a small pool. Nothing here knows of PyTorch.
//
// OpenMP's threads spin for milliseconds after an operator, and threads of a pool would have to wait for their cores. On
// two cores a pool beside them was no quicker than one thread, and they alone 1.6 times as quick.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#endif

namespace hookcli {

// The blocks of a piece of work, which threads take one by one.
class Blocks {
 public:
  using Run = void (*)(const void* work, int64_t block, int worker);

  Blocks(Run run, const void* work, int64_t count) : run_(run), work_(work), count_(count) {}

  void take() {
    const int worker = workers_.fetch_add(1);
    std::fenv_t before;  // a program may have subnormal numbers taken for 0, in some of its threads
    std::fegetenv(&before);
    std::fesetenv(FE_DFL_ENV);
    for (int64_t block; (block = next_.fetch_add(1)) < count_;) run_(work_, block, worker);
    std::fesetenv(&before);
  }

 private:
  const Run run_;
  const void* const work_;
  const int64_t count_;
  std::atomic<int64_t> next_{0};
  std::atomic<int> workers_{0};
};

// Threads that sleep until there is work. Only as many exist as were ever asked for.
class Pool {
 public:
  // Returns when all blocks are done. A caller that finds the threads working for another does its work alone.
  void run(Blocks& blocks, int threads) {
    std::unique_lock<std::mutex> alone(busy_, std::try_to_lock);
    if (!alone) return blocks.take();
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      blocks_ = &blocks;
      invited_ = std::min(threads - 1, size_);
    }
    wake_.notify_all();
    blocks.take();
    std::unique_lock<std::mutex> lock(mutex_);
    invited_ = 0;  // a thread that wakes only now goes back to sleep; nobody waits for it
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void grow(int size) {
#if !defined(_WIN32)
    sigset_t all, before;  // signals are for the program's own threads: Ctrl-C must interrupt what the main one waits for
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    try {
      for (; size_ < size; ++size_) std::thread([this] { work(); }).detach();
    } catch (const std::exception&) {  // the process may have no more threads: those that exist do the work
    }
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return invited_ > 0; });
      --invited_;
      ++running_;
      lock.unlock();
      blocks_->take();
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  Blocks* blocks_ = nullptr;
  int size_ = 0, invited_ = 0, running_ = 0;
};

// GOMP_parallel of libgomp, which the runtimes of LLVM and Intel have, too.
using OpenMP = void (*)(void (*)(void*), void*, unsigned, unsigned);

// The threads of this process. A forked child has none of its parent's, and could wait for them for ever.
struct Threads {
  std::atomic<Pool*> pool{nullptr};  // never deleted: its threads sleep until the process ends
  std::atomic<OpenMP> openmp{nullptr};

  static Threads& own() {
    static Threads threads;
    return threads;
  }

  Threads() {
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] {
      own().pool = nullptr;
      own().openmp = nullptr;
    });
#endif
  }

  Pool& made() {
    Pool* found = pool;
    if (found) return *found;
    Pool* fresh = new Pool;
    if (pool.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
    return *found;
  }
};

inline Threads& threads_at_load = Threads::own();  // before any fork that matters

// Calls `work(block, worker)` for each of `count` blocks. `worker`: from 0 on, below `threads`.
template <typename Work>
void for_each_block(int64_t count, int threads, const Work& work) {
  Blocks blocks([](const void* w, int64_t block, int worker) { (*static_cast<const Work*>(w))(block, worker); }, &work, count);
  if (threads < 2 || count < 2) return blocks.take();
  if (const OpenMP parallel = Threads::own().openmp) {
    return parallel([](void* all) { static_cast<Blocks*>(all)->take(); }, &blocks, static_cast<unsigned>(threads), 0);
  }
  Threads::own().made().run(blocks, threads);
}

} // namespace hookcli
