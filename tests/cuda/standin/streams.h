// Streams of the stand-in: each is a queue with a thread of its own, which does one thing after the other, when it likes.
//
// - Every piece of work has a delay, drawn from a seed, that ends early when somebody waits for the work. So a program
//   that waits for what it needs is never slowed down, and one that does not sees what was there before, every time.
// - Pieces of work are done one at a time in the whole process: what may run at the same time runs in either order.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace standin {

using Result = int;
using Lock = std::unique_lock<std::mutex>;

struct Stream;

// All that was put on a stream up to some moment.
struct Point {
    std::shared_ptr<Stream> stream;
    uint64_t ticket = 0;
    bool is_reached() const;
};

struct Work {
    std::vector<Point> after;  // of other streams
    std::function<Result()> run;
    std::chrono::microseconds delay;
};

struct Stream {
    std::deque<Work> queue;
    uint64_t put = 0, done = 0, wanted = 0;  // pieces of work, counted from the first
    int device;
    bool is_blocking;  // ordered against the default stream of its device
    bool ends = false;
    uint64_t random;

    Stream(int device, bool is_blocking, uint64_t seed) : device(device), is_blocking(is_blocking), random(seed) {}

    Point now(const std::shared_ptr<Stream>& self) const { return {self, put}; }
};

inline bool Point::is_reached() const { return !stream || stream->done >= ticket; }

// splitmix64.
inline uint64_t draw(uint64_t& random) {
    uint64_t z = random += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Everything about streams, all of it under one lock.
struct Streams {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<std::shared_ptr<Stream>> all;
    std::vector<std::shared_ptr<Stream>> defaults;  // by device
    // Why nothing is done any more: an error of work that is done later is the answer of the calls after it.
    Result sticky = 0;
    uint64_t seed = 1, made = 0;
    uint64_t most_delay_us = 0;
    // What brings device memory within reach of the thread that works, and out of reach when it waits.
    std::function<void(bool)> reach;
    bool is_in_reach = false;

    std::shared_ptr<Stream> make(int device, bool is_blocking) {
        auto stream = std::make_shared<Stream>(device, is_blocking, seed * 1000003 + ++made);
        all.push_back(stream);
        std::thread([this, stream] { serve(stream); }).detach();
        return stream;
    }

    // The legacy default stream.
    std::shared_ptr<Stream> standard(int device) {
        if (defaults.size() <= size_t(device)) defaults.resize(size_t(device) + 1);
        auto& stream = defaults[size_t(device)];
        return stream ? stream : stream = make(device, false);
    }

    // "Stream synchronization behavior", legacy default stream: an action on it first waits on all blocking streams, and
    // all blocking streams wait on it afterwards; streams made non-blocking do not.
    std::vector<Point> implied(const Stream& stream) {
        std::vector<Point> points;
        const auto standard = size_t(stream.device) < defaults.size() ? defaults[size_t(stream.device)] : nullptr;
        if (&stream == standard.get()) {
            for (auto& other : all)
                if (other->is_blocking && other->device == stream.device) points.push_back(other->now(other));
        } else if (stream.is_blocking && standard) {
            points.push_back(standard->now(standard));
        }
        return points;
    }

    // `held`: as late as a driver may do it.
    Point put(const std::shared_ptr<Stream>& stream, bool held, std::function<Result()> run, std::vector<Point> after = {}) {
        for (auto& point : implied(*stream)) after.push_back(point);
        const uint64_t drawn = draw(stream->random);
        const uint64_t us = drawn % 4 == 0 || most_delay_us == 0 ? 0 : (drawn >> 8) % most_delay_us;
        const auto delay = held ? std::chrono::minutes(10) : std::chrono::microseconds(us);
        stream->queue.push_back({std::move(after), std::move(run), delay});
        ++stream->put;
        changed.notify_all();
        return stream->now(stream);
    }

    // Waits until everything up to there is done, which it then is soon.
    Result wait(Lock& held, const Point& point) {
        if (!point.is_reached()) {
            point.stream->wanted = std::max(point.stream->wanted, point.ticket);
            changed.notify_all();
            changed.wait(held, [&] { return point.is_reached(); });
        }
        return sticky;
    }

    // The work that is on it is still done.
    void end(const std::shared_ptr<Stream>& stream) {
        stream->ends = true;
        all.erase(std::remove(all.begin(), all.end(), stream), all.end());
        changed.notify_all();
    }

   private:
    void serve(const std::shared_ptr<Stream>& stream) {
        Lock held(lock);
        while (true) {
            pause(held, nullptr, [&] { return !stream->queue.empty() || stream->ends; });
            if (stream->queue.empty()) return set_reach(false);
            Work work = std::move(stream->queue.front());
            stream->queue.pop_front();
            const uint64_t ticket = stream->done + 1;
            const auto until = std::chrono::steady_clock::now() + work.delay;
            pause(held, &until, [&] { return stream->wanted >= ticket || sticky != 0 || work.delay.count() == 0; });
            for (auto& point : work.after) {
                if (sticky || point.is_reached()) continue;
                point.stream->wanted = std::max(point.stream->wanted, point.ticket);
                changed.notify_all();
                pause(held, nullptr, [&] { return point.is_reached() || sticky != 0; });
            }
            if (!sticky) {
                set_reach(true);
                const Result failed = work.run();
                if (failed) sticky = failed;
            }
            stream->done = ticket;
            changed.notify_all();
        }
    }

    template <class Predicate>
    void pause(Lock& held, const std::chrono::steady_clock::time_point* until, Predicate is_over) {
        if (is_over()) return;
        set_reach(false);
        if (until) changed.wait_until(held, *until, is_over);
        else changed.wait(held, is_over);
    }

    void set_reach(bool wanted) {
        if (is_in_reach != wanted) reach(wanted);
        is_in_reach = wanted;
    }
};

}  // namespace standin
