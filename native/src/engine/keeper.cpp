// SPDX-License-Identifier: MIT
#include "keeper.h"

#include "../core/saturating.h"

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <unistd.h>

emc_keeper::emc_keeper(emc_cache & cache_, emc_keeper_options options_) :
    cache(cache_), options(std::move(options_)), thread([this] { run(); }) {}

emc_keeper::~emc_keeper() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        stopping = true;
    }
    wake.notify_all();
    thread.join();
}

// What the request file allows; others may write there, so a link is not followed and little is read.
int emc_keeper::requested_most() {
    char text[16] = "";
    const int fd = options.request_file.empty() ? -1 : open(options.request_file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        last_request.clear();
        return options.most;
    }
    const ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    std::string request(text, n > 0 ? (size_t) n : 0);
    while (!request.empty() && request.back() == '\n') {
        request.pop_back();
    }
    const bool valid = !request.empty() && request.size() <= 8 && request.find_first_not_of("0123456789") == std::string::npos;
    const int  most  = valid ? (int) std::min<uint64_t>((std::stoull(request) << 20) / options.round_bytes, (uint64_t) options.most) : options.most;
    if (request != last_request) {
        last_request = request;
        std::string printable = request;
        std::replace_if(printable.begin(), printable.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
        if (!valid) {
            options.say(options.request_file + " holds \"" + printable + "\": it accepts a whole number of MiB");
        } else {
            options.say("asked for " + request + " MiB: " + std::to_string(std::max(most, options.least)) + " slots in each layer" +
                (most < options.least ? ", one token cycle, as fewer would only cost" : most == options.most ? ", all that were set aside at start" : ""));
        }
    }
    return std::max(most, options.least);
}

// What other servers in the same memory leave to this one; at once, as one that comes waits for it.
void emc_keeper::share(emc_size_view & view, uint64_t room) {
    const uint64_t       own    = (uint64_t) view.slots * options.round_bytes;
    const emc_peers_seen seen   = options.peers ? options.peers(own, view.untouched_bytes) : emc_peers_seen();
    const uint64_t       theirs = emc_sum(emc_sum(options.dense_bytes, seen.mapped), seen.untouched);
    view.room_bytes = room - std::min(room, theirs);
    if (seen.others) {
        const uint64_t kept = emc_sum(theirs, view.reserve_bytes + view.untouched_bytes);
        view.most = std::clamp(emc_fair_slots(seen, own, room, kept, options.round_bytes), view.least, view.most);
    }
    if (seen.others != others) {
        others = seen.others;
        options.say(others ? "auto: shares its memory with " + std::to_string(others) + " other server" + (others > 1 ? "s" : "") +
            ": at most " + std::to_string(view.most) + " slots in each layer" : "auto: has its memory for itself again");
    }
}

void emc_keeper::look() {
    emc_size_view view;
    view.slots           = cache.n_slots();
    view.least           = options.least;
    view.most            = requested_most();
    view.round_bytes     = options.round_bytes;
    const uint64_t slots = (uint64_t) view.slots * options.round_bytes;
    view.untouched_bytes = slots - std::min(slots, cache.touched_bytes());
    view.reserve_bytes   = options.reserve_bytes;
    view.pressure        = pressure.update(options.waited(), std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
    share(view, options.room());
    cache.resize(emc_size_next(view));
}

void emc_keeper::run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!wake.wait_for(lock, std::chrono::seconds(1), [this] { return stopping; })) {
        lock.unlock();
        look();
        lock.lock();
    }
}
