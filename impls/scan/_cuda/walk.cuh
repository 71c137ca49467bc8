// How a block goes through tiles, while the loads of the tiles after them are under way.
//
// Strands: a block takes all tiles of a strand, the state and the tile in registers. CHAINED: blocks draw tiles as
// tickets, all strands of a tile before the next tile, and learn the state before a tile from the tiles that precede
// it; the next tile is composed to one map before a tile is replayed, so that waiting lies beside computing.
// GROUP tiles form a group. A tile waits for the maps of those before it in its group and for the state after
// the group before, and composes them in one fixed order, whoever arrives first: the same bits every time.
//
// Why waiting is safe: a block replays its tiles in the order of its tickets, and publishes a tile's map
// without waiting. So the block that holds the lowest tile not yet replayed waits for nothing that is not
// there. No order or residency of blocks is assumed.
// Why no fence is needed: what is published are 64-bit words, which memory first holds as EMPTY, written once
// and read as a whole; no other memory is read on the strength of one.
#include "tile.cuh"

constexpr Word EMPTY = ~0ull;
constexpr int HEAD = 16;  // words before the maps: the counter, which starts at EMPTY
static_assert(GROUP % RUNS == 0, "the warps share a group's maps evenly");
static_assert(SLOTS >= 2, "a tile is composed before the one ahead of it is replayed");

struct Spans {
    Maps before, whole;  // the steps of the tile before this thread's run; all of them
};

// What a thread keeps of its run between composing and replaying; a chain reads it again instead.
struct Held {
    Step steps[CHAINED ? 1 : STEPS];
};

struct Shared {
    Maps runs[RUNS][32];
    Maps earlier[CHAINED ? RUNS : 1][32];
    float entry[CHANNELS];
    float totals[CONST_GATE ? RUNS : 1][CHANNELS];
    int queue[SLOTS];
};
constexpr int SHARED_BYTES = (sizeof(Shared) + 15) / 16 * 16;

FUNCTION Word word_of(float low, float high) {
    Word word = as_bits(low) | (Word)as_bits(high) << 32;
    return word == EMPTY ? EMPTY ^ 1 : word;  // two other NaNs
}

FUNCTION Word awaited(Word word, const Word* at) {
    while (word == EMPTY) word = look(at);
    return word;
}

struct Words {
    Word *maps, *states;  // (B, tiles, C) and (B, groups, C)

    FUNCTION Words(Word* words, const Sizes& sizes)
        : maps(words + HEAD), states(words + HEAD + sizes.B * sizes.tiles() * sizes.C) {}
    FUNCTION Word* map(const Sizes& sizes, const Tile& tile, int order) const {
        return maps + (tile.batch * sizes.tiles() + order) * sizes.C + tile.channel + column();
    }
    FUNCTION Word* state(const Sizes& sizes, const Tile& tile, int group) const {
        return states + (tile.batch * sizes.groups() + group) * sizes.C + tile.channel + column();
    }
};

// Compose each run, and then the runs.
template <class Pass>
FUNCTION void compose(const Pass& pass, const unsigned char* slot, const Tile& tile, Shared& shared, Spans& spans,
                      Held& held) {
    Maps own;
    identity(own);
    UNROLL for (int i = 0; i < STEPS; ++i) {
        Step& step = held.steps[CHAINED ? 0 : i];
        pass.step(slot, tile, run() * STEPS + i, step);
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            own.of[v].x = Pass::after(step.a[v], own.of[v].x, step.x[v]);
            own.of[v].a *= step.a[v];
        }
    }
    shared.runs[run()][thread() % 32] = own;
    barrier();
    identity(spans.whole);
    UNROLL for (int r = 0; r < RUNS; ++r) {
        if (r == run()) spans.before = spans.whole;
        follow(spans.whole, shared.runs[r][thread() % 32]);
    }
}

FUNCTION void publish_map(const Words& words, const Sizes& sizes, const Tile& tile, const Spans& spans) {
    if (run() != 0 || tile.order % GROUP == GROUP - 1) return;
    UNROLL for (int v = 0; v < VECTOR; ++v) {
        if (tile.channel + column() + v < sizes.C)
            tell(words.map(sizes, tile, tile.order) + v, word_of(spans.whole.of[v].a, spans.whole.of[v].x));
    }
}

// The state before a tile, from the tiles that precede it; the last tile of a group publishes the one after it.
template <class Pass>
FUNCTION void look_back(const Pass& pass, const Words& words, const Tile& tile, const Spans& spans, Shared& shared,
                        float (&state)[VECTOR]) {
    constexpr int SHARE = GROUP / RUNS;
    const Sizes& sizes = pass.sizes;
    int group = tile.order / GROUP, place = tile.order % GROUP, from = tile.order - place + run() * SHARE;
    bool inside[VECTOR];
    UNROLL for (int v = 0; v < VECTOR; ++v) inside[v] = tile.channel + column() + v < sizes.C;

    Word word[SHARE][VECTOR], entry[VECTOR];
    bool follows = run() == 0 && group > 0;
    UNROLL for (int v = 0; v < VECTOR; ++v)
        entry[v] = follows && inside[v] ? look(words.state(sizes, tile, group - 1) + v) : 0;
    UNROLL for (int i = 0; i < SHARE; ++i) {
        UNROLL for (int v = 0; v < VECTOR; ++v)
            word[i][v] = from + i < tile.order && inside[v] ? look(words.map(sizes, tile, from + i) + v)
                                                            : word_of(1.f, 0.f);
    }
    Maps earlier;
    identity(earlier);
    UNROLL for (int i = 0; i < SHARE; ++i) {
        Maps one;
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            Word map = awaited(word[i][v], words.map(sizes, tile, from + i) + v);
            one.of[v] = {as_float((unsigned)map), as_float((unsigned)(map >> 32))};
        }
        follow(earlier, one);
    }
    shared.earlier[run()][thread() % 32] = earlier;
    barrier();
    if (run() == 0) {
        UNROLL for (int r = 1; r < RUNS; ++r) follow(earlier, shared.earlier[r][thread() % 32]);
        if (group == 0) pass.entry(tile, state);
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            if (follows && inside[v])
                state[v] = as_float((unsigned)awaited(entry[v], words.state(sizes, tile, group - 1) + v));
            else if (group > 0)
                state[v] = 0.f;
        }
        apply(earlier, state, state);
        float after[VECTOR];
        apply(spans.whole, state, after);
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            if (place == GROUP - 1 && inside[v]) tell(words.state(sizes, tile, group) + v, word_of(after[v], 0.f));
        }
        write(shared.entry + column(), state);
    }
    barrier();
    read(shared.entry + column(), state);
}

template <class Pass>
FUNCTION void walk(const Pass& pass, Word* memory) {
    const Sizes& sizes = pass.sizes;
    Shared& shared = *reinterpret_cast<Shared*>(arena());
    const Words words(memory, sizes);
    const Tile strand(sizes, block());
    auto slot = [&](int n) { return arena() + SHARED_BYTES + n % SLOTS * Pass::BYTES; };
    auto tile = [&](int n) { return CHAINED ? Tile(sizes, shared.queue[n % SLOTS]) : strand.at(n, sizes); };
    auto load = [&](int n) {
        Tile ahead = tile(n);
        if (ahead.there) pass.load(slot(n), ahead);
        close_copies();
    };

    if (CHAINED) {
        if (thread() == 0) {
            for (int n = 0; n < SLOTS; ++n) shared.queue[n] = (int)(draw(memory) + 1);
        }
        barrier();
    }
    for (int n = 0; n < SLOTS; ++n) load(n);
    Tile now = tile(0);
    if (!now.there) return;
    Spans spans;
    Held held;
    float state[VECTOR];
    if (CHAINED) {
        wait_copies<SLOTS - 1>();
        barrier();
        compose(pass, slot(0), now, shared, spans, held);
        publish_map(words, sizes, now, spans);
    } else {
        pass.entry(now, state);
    }

    for (int n = 0; now.there; ++n) {
        int ticket = CHAINED && thread() == 0 ? (int)(draw(memory) + 1) : 0;
        wait_copies<SLOTS - (CHAINED ? 2 : 1)>();
        barrier();
        Tile next = tile(n + 1);
        Spans next_spans = spans;
        if (!CHAINED) {
            compose(pass, slot(n), now, shared, spans, held);
            load(n + SLOTS);  // every thread holds its part of the tile
        } else {
            if (next.there) {
                compose(pass, slot(n + 1), next, shared, next_spans, held);
                publish_map(words, sizes, next, next_spans);
            }
            look_back(pass, words, now, spans, shared, state);
        }
        float at_run[VECTOR];
        apply(spans.before, state, at_run);
        apply(spans.whole, state, state);
        pass.replay(slot(n), now, at_run, shared.totals[CONST_GATE ? run() : 0], held);
        if (run() == 0 && now.order == sizes.tiles() - 1) pass.finish(now, state);
        if (CHAINED && thread() == 0) shared.queue[n % SLOTS] = ticket;
        if (CHAINED || Pass::SUMS) barrier();
        if (Pass::SUMS) pass.sum_up(now, shared.totals);
        if (CHAINED) load(n + SLOTS);
        now = next;
        spans = next_spans;
    }
}
