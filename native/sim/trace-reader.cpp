// SPDX-License-Identifier: MIT
#include "trace-reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

int emc_trace::n_used() const {
    for (const bool decode_only : {true, false}) {
        std::map<int, size_t> sizes;
        for (const emc_event & event : events) {
            if (event.phase == EMC_DECODE || !decode_only) {
                sizes[event.n] += 1;
            }
        }
        if (!sizes.empty()) {
            return std::max_element(sizes.begin(), sizes.end(),
                [](const auto & a, const auto & b) { return a.second < b.second; })->first;
        }
    }
    return 0;
}

namespace {

// Thrown by the parsers below, caught by emc_trace_read, which adds name and line.
struct complaint {
    std::string text;
};

std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size() && i < 40; ++i) {
        out += text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    }
    return out + (text.size() > 40 ? "...\"" : "\"");
}

// Walks over one line.
class cursor {
public:
    explicit cursor(const std::string & line_) : line(line_) {}

    bool at_end() const { return at == line.size(); }

    bool accept(char c) {
        if (at < line.size() && line[at] == c) {
            at += 1;
            return true;
        }
        return false;
    }

    bool accept(const std::string & word) {
        if (line.compare(at, word.size(), word) == 0) {
            at += word.size();
            return true;
        }
        return false;
    }

    void skip_blanks() {
        while (accept(' ') || accept('\t')) {
        }
    }

    void expect(const std::string & word) {
        if (!accept(word)) {
            fail("'" + word + "'");
        }
    }

    // Digits only: a sign, a blank or a point is not a number here.
    int number(const char * what, int low, int high) {
        const size_t begin = at;
        int64_t value = 0;
        while (at < line.size() && line[at] >= '0' && line[at] <= '9' && at - begin < 10) {
            value = value * 10 + (line[at++] - '0');
        }
        if (at == begin || value < low || value > high || (at < line.size() && line[at] >= '0' && line[at] <= '9')) {
            at = begin;
            fail(std::string(what) + " from " + std::to_string(low) + " to " + std::to_string(high));
        }
        return (int) value;
    }

    std::string until(char c) {
        const size_t end  = line.find(c, at);
        std::string  text = line.substr(at, end == std::string::npos ? end : end - at);
        at += text.size();
        return text;
    }

    [[noreturn]] void fail(const std::string & accepted) const {
        throw complaint{"column " + std::to_string(at + 1) + ": " + (at_end() ? "the line ends" : quoted(line.substr(at))) +
            ", expected " + accepted};
    }

private:
    const std::string & line;
    size_t              at = 0;
};

class reader {
public:
    reader(emc_prefill prefill_, emc_trace & trace_) : prefill(prefill_), trace(trace_), last_event(EMC_TRACE_EXPERTS, 0) {}
    virtual ~reader() = default;
    virtual void line(const std::string & text) = 0;
    virtual bool wants_unfinished_line() const { return true; }
    virtual void finish() {}

protected:
    void begin(int layer, emc_phase phase) {
        trace.events.push_back({ layer, phase, trace.experts.size(), 0 });
        trace.n_layers = std::max(trace.n_layers, layer + 1);
        n_events += 1;
    }

    // false: the event has it already
    bool add(int expert) {
        if (last_event[expert] == n_events) {
            return false;
        }
        if (trace.experts.size() == EMC_TRACE_LOOKUPS) {
            throw complaint{"more than " + std::to_string(EMC_TRACE_LOOKUPS) + " lookups: cut the trace into parts"};
        }
        last_event[expert] = n_events;
        trace.experts.push_back(expert);
        trace.events.back().n += 1;
        trace.n_experts = std::max(trace.n_experts, expert + 1);
        return true;
    }

    void add_new(int expert) {
        if (!add(expert)) {
            throw complaint{"expert " + std::to_string(expert) + " twice in one event, expected different ones"};
        }
    }

    const emc_prefill prefill;
    emc_trace &       trace;

private:
    std::vector<uint64_t> last_event;  // by expert
    uint64_t              n_events = 0;
};

class own_reader : public reader {
public:
    using reader::reader;

    bool wants_unfinished_line() const override { return false; }

    void line(const std::string & text) override {
        cursor c(text);
        if (trace.slots == 0) {
            header(c);
        } else if (c.accept('#')) {
            trace.complete = trace.complete && !c.accept(" dropped");
        } else {
            event(c);
        }
    }

private:
    void header(cursor & c) {
        c.expect("edge-moe-trace 1 layers=");
        trace.n_layers = c.number("layers", 1, EMC_TRACE_LAYERS);
        c.expect(" experts=");
        trace.n_experts = c.number("experts", 1, EMC_TRACE_EXPERTS);
        c.expect(" slots=");
        trace.slots = c.number("slots", 1, EMC_TRACE_EXPERTS);
        c.expect(" policy=");
        trace.policy = c.until(' ');
        if (trace.policy.empty() || !c.at_end()) {
            c.fail("the name of a policy and the end of the line");
        }
    }

    void event(cursor & c) {
        const int layer = c.number("a layer", 0, trace.n_layers - 1);
        c.expect(" ");
        const int       rows       = c.number("rows", 0, INT32_MAX);
        const bool      heard_only = rows == 0;
        const bool      streams    = !heard_only && c.accept('~');
        const emc_phase phase      = heard_only ? EMC_PREFILL : emc_phase_of(rows);
        if (prefill == emc_prefill::SKIP && phase == EMC_PREFILL) {
            return;
        }
        const bool heard = !trace.events.empty() && trace.events.back().heard_only && trace.events.back().layer == layer;
        begin(layer, phase);
        trace.events.back().heard_only = heard_only;
        trace.events.back().heard      = heard && !heard_only;
        trace.events.back().streams    = streams;
        while (!c.at_end() || trace.events.back().n + streams == 0) {
            c.expect(" ");
            add_new(c.number("an expert", 0, trace.n_experts - 1));
            int32_t outcome = EMC_HIT;
            if (streams && c.accept('-')) {
                outcome = EMC_PASSED;
            } else if (!heard_only && c.accept('+')) {
                const std::string victim = c.until(' ');
                cursor v(victim);
                outcome = victim.empty() ? EMC_EMPTY_SLOT : v.number("a victim", 0, trace.n_experts - 1);
                if (!victim.empty() && !v.at_end()) {
                    v.fail("the end of a number");
                }
            }
            trace.outcomes.push_back(outcome);
        }
    }
};

class csv_reader : public reader {
public:
    using reader::reader;

    void line(const std::string & text) override {
        cursor c(text);
        if (c.accept('#')) {
            return;
        }
        if (!titles_seen) {
            c.expect("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes");
            titles_seen = c.at_end();
            if (!titles_seen) {
                c.fail("the end of the line");
            }
            return;
        }
        row now;
        now.turn  = field(c, "a turn", INT32_MAX);
        now.phase = field(c, "a phase (0 prefill, 1 decode)", 1);
        now.step  = field(c, "a step", INT32_MAX);
        now.layer = field(c, "a layer", EMC_TRACE_LAYERS - 1);
        field(c, "a rank", INT32_MAX);
        const int expert = field(c, "an expert", EMC_TRACE_EXPERTS - 1);
        for (const char * rest : { "a weight", "a residency" }) {  // not used, but a row has them
            if (c.until(',').empty()) {
                c.fail(rest);
            }
            c.expect(",");
        }
        c.number("bytes", 0, INT32_MAX);
        if (!c.at_end()) {
            c.fail("the end of the line");
        }

        const bool is_prefill = now.phase == 0;
        if (is_prefill && prefill == emc_prefill::SKIP) {
            return;
        }
        const bool merge = is_prefill && prefill == emc_prefill::BATCH;
        if (!(now.turn == last.turn && now.phase == last.phase && now.layer == last.layer && (merge || now.step == last.step))) {
            begin(now.layer, is_prefill ? EMC_PREFILL : EMC_DECODE);
            tokens.push_back({ { now.turn, now.phase, merge ? 0 : now.step }, trace.events.back() });
        }
        last = now;
        if (merge) {
            add(expert);
        } else {
            add_new(expert);
        }
        tokens.back().second.n = trace.events.back().n;
    }

    // a batch is recorded layer by layer: bring its tokens into the order that decode has
    void finish() override {
        std::stable_sort(tokens.begin(), tokens.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
        for (size_t i = 0; i < tokens.size(); ++i) {
            trace.events[i] = tokens[i].second;
        }
    }

private:
    struct row {
        int turn = -1, phase = -1, step = -1, layer = -1;
    };

    static int field(cursor & c, const char * what, int high) {
        const int value = c.number(what, 0, high);
        c.expect(",");
        return value;
    }

    bool titles_seen = false;
    row  last;
    std::vector<std::pair<std::array<int, 3>, emc_event>> tokens;  // turn, phase, step
};

// Reads exactly the shape above; blanks may stand where JSON allows them.
class jsonl_reader : public reader {
public:
    using reader::reader;

    void line(const std::string & text) override {
        cursor c(text);
        sign(c, "{");
        sign(c, "\"tok\"");
        sign(c, ":");
        c.number("a token's number", 0, INT32_MAX);
        sign(c, ",");
        sign(c, "\"layers\"");
        sign(c, ":");
        int layer = 0;
        list(c, [&] {
            if (layer == EMC_TRACE_LAYERS) {
                c.fail("at most " + std::to_string(EMC_TRACE_LAYERS) + " layers");
            }
            begin(layer++, EMC_DECODE);
            list(c, [&] { add_new(c.number("an expert", 0, EMC_TRACE_EXPERTS - 1)); });
        });
        sign(c, "}");
        if (!c.at_end()) {
            c.fail("the end of the line");
        }
    }

private:
    static void sign(cursor & c, const char * word) {
        c.skip_blanks();
        c.expect(word);
        c.skip_blanks();
    }

    template <typename item_fn>
    static void list(cursor & c, item_fn item) {
        sign(c, "[");
        do {
            c.skip_blanks();
            item();
            c.skip_blanks();
        } while (c.accept(','));
        c.skip_blanks();
        c.expect("]");
    }
};

enum class ending { LINE, FILE, UNFINISHED };

// One line without its end. Throws if it is too long: what does not end is not held.
ending read_line(std::istream & in, std::string & line) {
    line.clear();
    std::streambuf * buffer = in.rdbuf();
    for (int c = buffer->sbumpc(); c != std::char_traits<char>::eof(); c = buffer->sbumpc()) {
        if (c == '\n') {
            if (!line.empty() && line.back() == '\r') {
                line.pop_back();
            }
            return ending::LINE;
        }
        if (line.size() == EMC_TRACE_LINE) {
            throw complaint{"a line of more than " + std::to_string(EMC_TRACE_LINE) + " bytes: not a trace"};
        }
        line += (char) c;
    }
    return line.empty() ? ending::FILE : ending::UNFINISHED;
}

std::unique_ptr<reader> reader_for(const std::string & line, emc_prefill prefill, emc_trace & trace) {
    if (line.compare(0, 14, "edge-moe-trace") == 0) {
        trace.format = "edge-moe-trace";
        return std::make_unique<own_reader>(prefill, trace);
    }
    if (line[0] == '#' || line.compare(0, 5, "turn,") == 0) {
        trace.format = "csv";
        return std::make_unique<csv_reader>(prefill, trace);
    }
    if (line[0] == '{') {
        trace.format = "jsonl";
        return std::make_unique<jsonl_reader>(prefill, trace);
    }
    throw complaint{quoted(line) + ", expected a trace: \"edge-moe-trace 1 ...\", \"# ...\" and CSV titles, or \"{\"tok\": ...\""};
}

} // namespace

bool emc_trace_read(std::istream & in, const std::string & name, emc_prefill prefill, emc_trace & trace, std::string & error) {
    trace = emc_trace();
    std::unique_ptr<reader> lines;
    std::string line;
    size_t      number = 0;
    try {
        while (true) {
            number += 1;
            const ending how = read_line(in, line);
            if (how == ending::FILE) {
                break;
            }
            if (line.empty()) {
                continue;
            }
            if (!lines) {
                lines = reader_for(line, prefill, trace);
            }
            if (how == ending::LINE || lines->wants_unfinished_line()) {
                lines->line(line);
            }
        }
        if (trace.events.empty()) {
            throw complaint{"the file ends without an event"};
        }
        lines->finish();
    } catch (const complaint & c) {
        error = name + ":" + std::to_string(number) + ": " + c.text;
        return false;
    } catch (const std::ios_base::failure & failure) {  // a folder, or a disk that fails
        error = name + ":" + std::to_string(number) + ": cannot be read: " + failure.code().message();
        return false;
    }
    return true;
}
