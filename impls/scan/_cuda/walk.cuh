// How a block goes through tiles, while the loads of the tiles after them are under way.
//
// A run is composed to one map. The maps of a warp's runs are scanned across its lanes, those of the warps in order,
// and then each run is replayed from its true starting state.
//
// Strands: a block takes all tiles of a strand, the state in registers. A thread keeps, for each of its steps, the
// product of the gates and the state from zero since the run's start, so that replaying a step is one fused
// multiply-add. CHAINED: blocks draw tiles as tickets, all strands of a tile before the next tile, and learn the state
// before a tile from the tiles that precede it. While it waits, a tile stays in shared memory in its own types, since
// that holds more than registers do, and replaying reads it again: what bounds a chain is how many tiles are composed
// and waiting at once. GROUP tiles form a group. A tile waits for the maps of those before it in its group and for the
// state after the group before, and composes them in one fixed order, whoever arrives first: the same bits every time.
//
// Why waiting is safe: a block goes through its tiles in the order of its tickets, and publishes a tile's map before it
// waits for that tile. So the block that holds the lowest tile not yet replayed waits for nothing that is not there. No
// order or residency of blocks is assumed.
// Why no fence is needed: what is published are 64-bit words, which memory first holds as EMPTY, written once
// and read as a whole; no other memory is read on the strength of one.
#include "tile.cuh"

constexpr Word EMPTY = ~0ull;
constexpr int HEAD = 16;  // words before the maps: the counter, which starts at EMPTY
constexpr int PLANES = COMPLEX ? 2 : 1;  // words of a map
constexpr int SHARES = THREADS / CHANNELS, PER_SHARE = (GROUP + SHARES - 1) / SHARES;

// What a thread keeps of its run's steps. After step i: state = product[i] * (state before the run) + from_zero[i].
struct Held {
    Number product[CHAINED ? 1 : STEPS][VECTOR], from_zero[CHAINED ? 1 : STEPS][VECTOR];
};

struct Shared {
    Map warps[WARPS][CHANNELS];
    Map earlier[CHAINED ? SHARES : 1][CHANNELS];
    Number entry[CHANNELS];
    Number totals[CONST_GATE || CONST_PHASE ? WARPS : 1][CHANNELS];
    int queue[2 * SLOTS];
};
constexpr int SHARED_BYTES = (sizeof(Shared) + 127) / 128 * 128;

FUNCTION Word word_of(float low, float high) {
    Word word = as_bits(low) | (Word)as_bits(high) << 32;
    return word == EMPTY ? EMPTY ^ 1 : word;  // two other NaNs
}
FUNCTION float low_of(Word word) { return as_float((unsigned)word); }
FUNCTION float high_of(Word word) { return as_float((unsigned)(word >> 32)); }

// Maps (B, tiles, PLANES, C) and states (B, groups, C) that tiles tell one another, of one channel.
struct Words {
    Word *maps, *states;

    FUNCTION Words(Word* words, const Sizes& sizes, const Tile& tile, long long channel)
        : maps(words + HEAD + tile.batch * sizes.tiles() * PLANES * sizes.C + channel),
          states(words + HEAD + (sizes.B * sizes.tiles() * PLANES + tile.batch * sizes.groups()) * sizes.C + channel) {}

    FUNCTION Word* map(const Sizes& sizes, int order, int plane) const {
        return maps + ((long long)order * PLANES + plane) * sizes.C;
    }
    FUNCTION Word* state(const Sizes& sizes, int group) const { return states + (long long)group * sizes.C; }
};

FUNCTION void tell_map(const Words& words, const Sizes& sizes, int order, const Map& map) {
#if COMPLEX
    tell(words.map(sizes, order, 0), word_of(map.a.re, map.a.im));
    tell(words.map(sizes, order, 1), word_of(map.x.re, map.x.im));
#else
    tell(words.map(sizes, order, 0), word_of(map.a.re, map.x.re));
#endif
}
FUNCTION Map map_of(const Word (&word)[PLANES]) {
#if COMPLEX
    return {{low_of(word[0]), high_of(word[0])}, {low_of(word[1]), high_of(word[1])}};
#else
    return {{low_of(word[0])}, {high_of(word[0])}};
#endif
}
FUNCTION Number state_of(Word word) {
#if COMPLEX
    return {low_of(word), high_of(word)};
#else
    return {low_of(word)};
#endif
}
FUNCTION Word word_of_state(Number state) {
#if COMPLEX
    return word_of(state.re, state.im);
#else
    return word_of(state.re, 0.f);
#endif
}

// Tell the other warps this one's map, and give the map of the warp's steps before this thread's run.
template <class Pass>
FUNCTION void compose(const Pass& pass, unsigned char* slot, const Tile& tile, Map (&warps)[WARPS][CHANNELS],
                      Held& held, Map (&before)[VECTOR]) {
    Map own[VECTOR];
    UNROLL for (int v = 0; v < VECTOR; ++v) own[v] = IDENTITY;
    UNROLL_BY(UNROLLED) for (int i = 0; i < STEPS; ++i) {
        Number a[VECTOR], x[VECTOR];
        pass.template step<false>(slot, tile, run() * STEPS + i, a, x);
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            own[v] = {times(a[v], own[v].a), Pass::after(a[v], own[v].x, x[v])};
            held.product[CHAINED ? 0 : i][v] = own[v].a;
            held.from_zero[CHAINED ? 0 : i][v] = own[v].x;
        }
    }
    UNROLL for (int by = 1; by < RUNS_A_WARP; by *= 2) {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            Map earlier = {shuffle_up(own[v].a, by * LANES), shuffle_up(own[v].x, by * LANES)};
            if (run_of_warp() >= by) own[v] = follow(earlier, own[v]);
        }
    }
    if (run_of_warp() == RUNS_A_WARP - 1) {
        UNROLL for (int v = 0; v < VECTOR; ++v) warps[warp()][column() + v] = own[v];
    }
    UNROLL for (int v = 0; v < VECTOR; ++v) {
        before[v] = IDENTITY;
        if (RUNS_A_WARP == 1) continue;
        Map earlier = {shuffle_up(own[v].a, LANES), shuffle_up(own[v].x, LANES)};
        if (run_of_warp() > 0) before[v] = earlier;
    }
}

// The state before this thread's run, and `state` goes on to the one after the tile.
FUNCTION void enter(const Map (&warps)[WARPS][CHANNELS], const Map (&before)[VECTOR], Number (&state)[VECTOR],
                    Number (&at_run)[VECTOR]) {
    UNROLL for (int w = 0; w < WARPS; ++w) {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            if (w == warp()) at_run[v] = apply(before[v], state[v]);
            state[v] = apply(warps[w][column() + v], state[v]);
        }
    }
}

// This thread's part in finding the state before a tile: for one channel, a share of the maps of the tiles before it in
// its group and, of the first share, the state after the group before.
struct Look {
    int group, place, first, share, c;
    long long channel;
    bool inside, follows;
    Word maps[PER_SHARE][PLANES], state;

    FUNCTION Look(const Sizes& sizes, const Tile& tile)
        : group(tile.order / GROUP), place(tile.order % GROUP), first(tile.order - place), share(thread() / CHANNELS),
          c(thread() % CHANNELS), channel(tile.channel + c), inside(channel < sizes.C),
          follows(share == 0 && inside && group > 0), state(EMPTY) {
        UNROLL for (int i = 0; i < PER_SHARE; ++i) {
            UNROLL for (int p = 0; p < PLANES; ++p) maps[i][p] = EMPTY;
        }
    }

    FUNCTION bool needs(int i) const { return inside && share * PER_SHARE + i < place; }

    // Until all that this thread needs is there; what is missing is asked for at once.
    FUNCTION void wait(const Words& words, const Sizes& sizes) {
        for (bool missing = true; missing;) {
            missing = false;
            UNROLL for (int i = 0; i < PER_SHARE; ++i) {
                UNROLL for (int p = 0; p < PLANES; ++p) {
                    if (needs(i) && maps[i][p] == EMPTY)
                        maps[i][p] = look(words.map(sizes, first + share * PER_SHARE + i, p));
                }
            }
            if (follows && state == EMPTY) state = look(words.state(sizes, group - 1));
            UNROLL for (int i = 0; i < PER_SHARE; ++i) {
                UNROLL for (int p = 0; p < PLANES; ++p) missing |= needs(i) && maps[i][p] == EMPTY;
            }
            missing |= follows && state == EMPTY;
        }
    }

    // This share's tiles, one after another.
    FUNCTION Map earlier() const {
        Map map = IDENTITY;
        UNROLL for (int i = 0; i < PER_SHARE; ++i) {
            if (needs(i)) map = follow(map, map_of(maps[i]));
        }
        return map;
    }
};

// Publish the map of a tile; the state before it goes to shared.entry. The last tile of a group publishes the state
// after it.
template <class Pass>
FUNCTION void look_back(const Pass& pass, Word* memory, const Tile& tile, Shared& shared) {
    const Sizes& sizes = pass.sizes;
    Look found(sizes, tile);
    const Words words(memory, sizes, tile, found.channel);
    Map own = IDENTITY;
    if (found.share == 0) {
        UNROLL for (int w = 0; w < WARPS; ++w) own = follow(own, shared.warps[w][found.c]);
        if (found.inside && found.place < GROUP - 1) tell_map(words, sizes, tile.order, own);
    }
    found.wait(words, sizes);
    Map earlier = found.earlier();
    shared.earlier[found.share][found.c] = earlier;
    barrier();
    if (found.share == 0) {
        UNROLL for (int s = 1; s < SHARES; ++s) earlier = follow(earlier, shared.earlier[s][found.c]);
        Number entry = found.follows ? state_of(found.state) : fetch(pass.entry(tile), found.channel, sizes);
        entry = apply(earlier, entry);
        if (found.inside && found.place == GROUP - 1)
            tell(words.state(sizes, found.group), word_of_state(apply(own, entry)));
        shared.entry[found.c] = entry;
    }
    barrier();
}

template <class Pass>
FUNCTION void walk_strand(const Pass& pass) {
    // Where a tile's rows are read again in the end, its slot is free only when all threads have come to the next.
    constexpr bool EARLY = !Pass::READS_AGAIN;
    const Sizes& sizes = pass.sizes;
    Shared& shared = *reinterpret_cast<Shared*>(arena());
    const Tile strand(sizes, block());
    auto slot = [&](int n) { return arena() + SHARED_BYTES + n % SLOTS * Pass::BYTES; };
    auto load = [&](int n) {
        Tile ahead = strand.at(n, sizes);
        if (ahead.there) pass.load(slot(n), ahead);
        close_copies();
    };

    for (int n = 0; n < SLOTS - !EARLY; ++n) load(n);
    Number state[VECTOR], at_run[VECTOR];
    UNROLL for (int v = 0; v < VECTOR; ++v)
        state[v] = fetch(pass.entry(strand), strand.channel + column() + v, sizes);
    for (int n = 0; n < sizes.tiles(); ++n) {
        wait_copies<SLOTS - 1 - !EARLY>();
        barrier();
        if (!EARLY) load(n + SLOTS - 1);
        Tile now = strand.at(n, sizes);
        Held held;
        Map before[VECTOR];
        compose(pass, slot(n), now, shared.warps, held, before);
        barrier();
        if (EARLY) load(n + SLOTS);
        enter(shared.warps, before, state, at_run);
        pass.replay(slot(n), now, at_run, held, shared);
    }
    if (run() == 0) pass.finish(strand, state);
}

template <class Pass>
FUNCTION void walk_chain(const Pass& pass, Word* memory) {
    const Sizes& sizes = pass.sizes;
    Shared& shared = *reinterpret_cast<Shared*>(arena());
    auto slot = [&](int n) { return arena() + SHARED_BYTES + n % SLOTS * Pass::BYTES; };
    auto tile = [&](int n) { return Tile(sizes, shared.queue[n % (2 * SLOTS)]); };
    auto load = [&](int n) {
        Tile ahead = tile(n);
        if (ahead.there) pass.load(slot(n), ahead);
        close_copies();
    };

    int ticket = 0;
    if (thread() == 0) {
        for (int n = 0; n < SLOTS; ++n) shared.queue[n] = (int)(draw(memory) + 1);
        ticket = (int)(draw(memory) + 1);
    }
    barrier();
    for (int n = 0; n < SLOTS; ++n) load(n);
    for (int n = 0;; ++n) {
        wait_copies<SLOTS - 1>();
        barrier();
        Tile now = tile(n);
        if (!now.there) break;
        if (thread() == 0) {
            shared.queue[(n + SLOTS) % (2 * SLOTS)] = ticket;
            ticket = (int)(draw(memory) + 1);
        }
        Held unused;
        Map before[VECTOR];
        compose(pass, slot(n), now, shared.warps, unused, before);
        barrier();
        look_back(pass, memory, now, shared);
        Number state[VECTOR], at_run[VECTOR];
        UNROLL for (int v = 0; v < VECTOR; ++v) state[v] = shared.entry[column() + v];
        enter(shared.warps, before, state, at_run);
        pass.replay(slot(n), now, at_run, unused, shared);
        if (run() == 0 && now.order == sizes.tiles() - 1) pass.finish(now, state);
        barrier();
        load(n + SLOTS);
    }
}

template <class Pass>
FUNCTION void walk(const Pass& pass, Word* memory) {
    if constexpr (CHAINED) {
        walk_chain(pass, memory);
    } else {
        walk_strand(pass);
    }
}
