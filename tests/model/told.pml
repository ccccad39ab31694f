/* Which calls tell of a view change: the channels of one comm over a membership that is taken as right
 * (view_change.pml shows that). Ranks make the same calls in the same order, each when it likes, up to
 * WINDOW of them under way; a rank dies, a deadline is settled, twice in a row; ranks close the comm
 * when their last call is told.
 *
 * Odd seqs need a contribution of every member, even ones only that of the lowest living member (a
 * broadcast), who is done with it at once. A change freezes each rank at a time of its own (freeze), then
 * decides, with the catch-up, from the frozen tables of all who live, and is installed by each in its
 * time. Landings go in order for each pair.
 *
 * Asserted where they could break:
 *   T1  two living ranks are told the same of one call: success, or the same changes
 *   T2  nothing that was told is undone: N* is not below what any living rank has been told
 *   T3  a success is over calls of the same step of all programs
 *   T4  who succeeds in an epoch has been told of every change before it, on each channel
 * Macros: CALLS for each channel, CHANNELS, CRASHES, SETTLES, WINDOW, wrong variants: see README.md. */
#ifndef N
#define N 3
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef CHANNELS
#define CHANNELS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef SETTLES
#define SETTLES 1
#endif
#ifndef WINDOW
#define WINDOW 2
#endif
#define CHANGES (CRASHES + SETTLES)
#define ALL ((1 << N) - 1)
#define BIT(i) (1 << (i))
#define IN(i, set) (((set) >> (i)) & 1)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define LOWEST(s) (((s) & 1) -> 0 : (((s) & 2) -> 1 : (((s) & 4) -> 2 : 3)))

/* One channel of one rank. A decision k of the list: calls in (from, last] report the changes of set. */
typedef Channel {
  byte called;
  byte done;
  byte next = 1;
  byte fixed;    /* another that closes was told of calls up to here */
  byte skipped;  /* seqs that the program knows nothing of */
  byte reported; /* changes */
  byte rep;      /* frozen */
  byte ent;
  byte from[CHANGES];
  byte last[CHANGES];
  byte set[CHANGES];
  byte told[CALLS + 1]; /* 0 not yet, 1 success, 2 + set of changes */
  byte landed[N]        /* calls of each rank whose contributions are here */
};

typedef Rank {
  byte epoch;
  byte members = ALL;
  byte held; /* who has said that it holds what this one was told */
  bit frozen;
  bit closing;
  bit closed
};

typedef Decision {
  bit made;
  bit settled;
  byte members;
  byte from[CHANNELS];
  byte next[CHANNELS]
};

Channel channel[CHANNELS * N];
Rank rank[N];
Decision decision[CHANGES + 1]; /* what ends epoch k */
byte alive = ALL;
byte crashes = CRASHES;
byte settles = SETTLES;
#define OF(c, j) channel[(c) * N + (j)]
#define BASE(c, j) MAX(OF(c, j).done, OF(c, j).next - 1)
#ifdef NOTHING_FIXED
#define REPORTED(c, j) MAX(OF(c, j).done, MIN(OF(c, j).called, OF(c, j).next - 1))
#else
#define REPORTED(c, j) \
  MAX(OF(c, j).fixed, MAX(OF(c, j).done, MIN(OF(c, j).called, OF(c, j).next - 1)))
#endif

/* Scratch of one step; no part of the state. */
hidden byte c, i, k, s, v, ok, reach, most, entered;

/* T1 and T4. */
inline tell(ch, j, seq, what) {
  i = 0;
  do
  :: i < N ->
     assert(i == j || !IN(i, alive) || OF(ch, i).told[seq] == 0 || OF(ch, i).told[seq] == (what));
     i++
  :: else -> break
  od;
  OF(ch, j).told[seq] = what;
  if
  :: (what) > 1 ->
     OF(ch, j).reported = OF(ch, j).reported | ((what) - 2);
#ifdef SHARED_NEWS
     /* A change that one channel has told of is news no more on the others. */
     i = 0;
     do
     :: i < CHANNELS ->
        k = 0;
        do
        :: k < CHANGES ->
           if
           :: i != ch && (OF(i, j).set[k] & ((what) - 2)) -> OF(i, j).set[k] = 0; OF(i, j).last[k] = 0
           :: else
           fi;
           k++
        :: else -> break
        od;
        i++
     :: else -> break
     od
#endif
#ifdef REACH_SHARED
     assert((what) != 5)
#endif
  :: else ->
#ifdef REACH_AFTER
     assert(rank[j].epoch < CHANGES || seq < OF(ch, j).next);
#endif
     assert(seq < OF(ch, j).next || OF(ch, j).reported == (1 << rank[j].epoch) - 1)
  fi
}

/* Whether operation seq can be done with what is here; sets ok. */
inline complete(ch, j, seq) {
  ok = 1;
  i = 0;
  do
  :: i < N ->
     if
     :: IN(i, rank[j].members) && OF(ch, j).landed[i] < seq &&
        (seq % 2 == 1 || i == LOWEST(rank[j].members)) -> ok = 0
     :: else
     fi;
     i++
  :: else -> break
  od
}

inline check_steps(ch, j) {
  i = 0;
  do
  :: i < N ->
     assert(!IN(i, rank[j].members & alive) || OF(ch, i).called < s || s % 2 == 0 ||
            OF(ch, i).skipped == OF(ch, j).skipped); /* T3 */
     i++
  :: else -> break
  od
}

inline complete_all(ch, j) {
  do
  :: BASE(ch, j) < OF(ch, j).called ->
     s = BASE(ch, j) + 1;
     complete(ch, j, s);
     if
     :: ok ->
        OF(ch, j).done = s;
        check_steps(ch, j);
        tell(ch, j, s, 1)
     :: else -> break
     fi
  :: else -> break
  od
}

/* How far rank j can go with what is here, broadcasts that it has not called included; sets reach. */
inline find_reach(ch, j) {
  reach = BASE(ch, j);
  do
  :: reach < CALLS && reach % 2 == 1 ->
     complete(ch, j, (reach + 1));
     if
     :: ok -> reach++
     :: else -> break
     fi
  :: else -> break
  od;
  if
  :: reach < OF(ch, j).next -> reach = REPORTED(ch, j)
  :: else
  fi
}

/* The decision that call s meets; sets v, CHANGES if there is none. */
inline find_decision(ch, j) {
  v = CHANGES;
  k = 0;
  do
  :: k < CHANGES ->
     if
     :: OF(ch, j).from[k] < s && s <= OF(ch, j).last[k] -> v = k
     :: else
     fi;
     k++
  :: else -> break
  od
}

inline call(ch, j) {
  s = OF(ch, j).called + 1;
  find_decision(ch, j);
#ifdef LATE_NOT_TOLD
  v = CHANGES;
#endif
  if
  :: v < CHANGES ->
#ifdef REACH_LATE
     assert(0);
#endif
     OF(ch, j).called = s;
     tell(ch, j, s, 2 + OF(ch, j).set[v])
  :: else ->
     if
     :: s > OF(ch, j).done && s < OF(ch, j).next ->
        OF(ch, j).skipped = OF(ch, j).skipped + OF(ch, j).next - s;
        s = OF(ch, j).next
     :: else
     fi;
     if
     :: s > CALLS -> OF(ch, j).called = CALLS /* the search ends here */
     :: else ->
        OF(ch, j).called = s;
        if
        :: s <= OF(ch, j).done -> tell(ch, j, s, 1)
        :: else -> OF(ch, j).landed[j] = s; complete_all(ch, j)
        fi
     fi
  fi
}

inline freeze(j) {
  rank[j].frozen = 1;
  c = 0;
  do
  :: c < CHANNELS ->
     find_reach(c, j);
     OF(c, j).done = (reach >= OF(c, j).next -> reach : OF(c, j).done);
     OF(c, j).rep = (rank[j].closed -> 0 : reach);
     OF(c, j).ent = (rank[j].closed -> 0 : MAX(OF(c, j).called, reach));
     c++
  :: else -> break
  od
}

inline decide(e) {
  decision[e].made = 1;
  decision[e].members = alive;
  c = 0;
  do
  :: c < CHANNELS ->
     most = 0;
     entered = 0;
     i = 0;
     do
     :: i < N ->
        if
        :: IN(i, alive) ->
           most = MAX(most, OF(c, i).rep);
           entered = MAX(entered, OF(c, i).ent)
        :: else
        fi;
        i++
     :: else -> break
     od;
     decision[e].from[c] = most;
#ifdef NO_CALL_REPORTS
     decision[e].next[c] = MAX(entered, most) + 1;
#else
     decision[e].next[c] = MAX(entered, most + 1) + 1;
#endif
     c++
  :: else -> break
  od
}

/* The new decision comes last; earlier ones end at its N*, those left empty share its calls. */
inline add_decision(ch, j, e) {
  OF(ch, j).from[e] = decision[e].from[ch];
  OF(ch, j).last[e] = decision[e].next[ch] - 1;
  OF(ch, j).set[e] = BIT(e);
  k = 0;
  do
  :: k < e ->
#ifdef ONE_DECISION
     OF(ch, j).last[k] = 0;
#else
#ifndef NOT_CUT
     OF(ch, j).last[k] = MIN(OF(ch, j).last[k], OF(ch, j).from[e]);
#endif
     if
     :: OF(ch, j).set[k] && OF(ch, j).last[k] <= OF(ch, j).from[k] ->
        OF(ch, j).set[e] = OF(ch, j).set[e] | OF(ch, j).set[k];
        OF(ch, j).set[k] = 0;
        OF(ch, j).last[k] = 0
     :: else
     fi;
#endif
     k++
  :: else -> break
  od
}

inline settle(ch, j, e) {
  assert(REPORTED(ch, j) <= decision[e].from[ch]); /* T2 */
  if
  :: decision[e].from[ch] >= OF(ch, j).next -> OF(ch, j).done = decision[e].from[ch]
  :: else
  fi;
  add_decision(ch, j, e);
  s = 1;
  do
  :: s <= OF(ch, j).called && s <= CALLS ->
     if
     :: OF(ch, j).told[s] == 0 && s > OF(ch, j).next - 1 ->
        if
        :: s <= decision[e].from[ch] -> tell(ch, j, s, 1)
        :: else -> find_decision(ch, j); assert(v < CHANGES); tell(ch, j, s, 2 + OF(ch, j).set[v])
        fi
     :: else
     fi;
     s++
  :: else -> break
  od;
  OF(ch, j).next = decision[e].next[ch];
  i = 0;
  do
  :: i < N -> OF(ch, j).landed[i] = OF(ch, j).next - 1; i++
  :: else -> break
  od
}

inline install(j) {
  most = rank[j].epoch;
  c = 0;
  do
  :: c < CHANNELS ->
     if
     :: !rank[j].closed -> settle(c, j, most)
     :: else
     fi;
     OF(c, j).rep = 0;
     OF(c, j).ent = 0;
     c++
  :: else -> break
  od;
  rank[j].epoch = most + 1;
  rank[j].members = decision[most].members;
  rank[j].frozen = 0;
  rank[j].held = (rank[j].closing -> ALL : 0)
}

/* The answer of rank b to rank j that closes; a yes is a promise. */
inline answer(b, j) {
  entered = 1;
  c = 0;
  do
  :: c < CHANNELS ->
     s = REPORTED(c, j);
     if
     :: rank[b].closed || (rank[b].frozen && OF(c, b).rep >= s) || (!rank[b].frozen && s < OF(c, b).next)
     :: else ->
        if
        :: rank[b].frozen -> entered = 0
        :: else -> find_reach(c, b); entered = (reach >= s -> entered : 0)
        fi
     fi;
     c++
  :: else -> break
  od;
  c = 0;
  do
  :: entered && c < CHANNELS ->
     if
     :: !rank[b].frozen && REPORTED(c, j) < OF(c, b).next ->
        OF(c, b).fixed = MAX(OF(c, b).fixed, REPORTED(c, j))
     :: else
     fi;
     c++
  :: else -> break
  od;
  rank[j].held = rank[j].held | (entered << (b))
}

/* Nothing of a crashed rank matters any more, but that it is a member still. */
inline crash(j) {
  alive = alive & ~BIT(j);
  crashes--;
  c = 0;
  do
  :: c < CHANNELS ->
     OF(c, j).called = 0;
     OF(c, j).done = 0;
     OF(c, j).next = 0;
     OF(c, j).fixed = 0;
     OF(c, j).skipped = 0;
     OF(c, j).reported = 0;
     OF(c, j).rep = 0;
     OF(c, j).ent = 0;
     i = 0;
     do
     :: i < CHANGES ->
        OF(c, j).from[i] = 0;
        OF(c, j).last[i] = 0;
        OF(c, j).set[i] = 0;
        i++
     :: else -> break
     od;
     i = 0;
     do
     :: i <= CALLS -> OF(c, j).told[i] = 0; i++
     :: else -> break
     od;
     i = 0;
     do
     :: i < N -> OF(c, j).landed[i] = 0; i++
     :: else -> break
     od;
     c++
  :: else -> break
  od;
  rank[j].epoch = 0;
  rank[j].members = 0;
  rank[j].held = 0;
  rank[j].frozen = 0;
  rank[j].closing = 0;
  rank[j].closed = 0
}

#define LIVES(j) IN(j, alive)
#define UNDER_WAY(ch, j) (OF(ch, j).called - MIN(OF(ch, j).called, BASE(ch, j)))
#define CAN_CALL(ch, j) \
  (LIVES(j) && !rank[j].frozen && !rank[j].closing && OF(ch, j).called < CALLS && UNDER_WAY(ch, j) < WINDOW)
#define CAN_LAND(ch, b, j)                                                               \
  (LIVES(b) && LIVES(j) && !rank[j].frozen && !rank[j].closed && rank[b].epoch == rank[j].epoch &&     \
   OF(ch, j).landed[b] < OF(ch, b).called)
#define WANTED(j) ((rank[j].members & ~alive) || decision[rank[j].epoch].settled)
#define CAN_FREEZE(j) (LIVES(j) && !rank[j].frozen && rank[j].epoch < CHANGES && WANTED(j))
#define FROZEN(b, e) (!LIVES(b) || (rank[b].frozen && rank[b].epoch == e))
#if N == 2
#define ALL_FROZEN(e) (FROZEN(0, e) && FROZEN(1, e))
#define EACH(F) F(0) F(1)
#define PAIRS(F) F(0, 1) F(1, 0)
#elif N == 3
#define ALL_FROZEN(e) (FROZEN(0, e) && FROZEN(1, e) && FROZEN(2, e))
#define EACH(F) F(0) F(1) F(2)
#define PAIRS(F) F(0, 1) F(0, 2) F(1, 0) F(1, 2) F(2, 0) F(2, 1)
#else
#define ALL_FROZEN(e) (FROZEN(0, e) && FROZEN(1, e) && FROZEN(2, e) && FROZEN(3, e))
#define EACH(F) F(0) F(1) F(2) F(3)
#define PAIRS(F)                                                                      \
  F(0, 1) F(0, 2) F(0, 3) F(1, 0) F(1, 2) F(1, 3) F(2, 0) F(2, 1) F(2, 3) F(3, 0) F(3, 1) F(3, 2)
#endif
#if CHANNELS == 1
#define ENDED(j) (OF(0, j).told[CALLS] != 0)
#else
#define ENDED(j) (OF(0, j).told[CALLS] != 0 && OF(1, j).told[CALLS] != 0)
#endif
#define MAY_SETTLE(j)                                                                   \
  (settles && LIVES(j) && rank[j].epoch < CHANGES && !decision[rank[j].epoch].settled &&      \
   !decision[rank[j].epoch].made && (UNDER_WAY(0, j) || rank[j].closing) && !rank[j].closed)

#define CALL0(j) :: d_step { CAN_CALL(0, j) -> call(0, j); i = 0 }
#define CALL1(j) :: d_step { CAN_CALL(1, j) -> call(1, j); i = 0 }
#define LAND0(b, j) \
  :: d_step { CAN_LAND(0, b, j) -> OF(0, j).landed[b] = OF(0, j).landed[b] + 1; complete_all(0, j); i = 0 }
#define LAND1(b, j) \
  :: d_step { CAN_LAND(1, b, j) -> OF(1, j).landed[b] = OF(1, j).landed[b] + 1; complete_all(1, j); i = 0 }
#define FREEZE(j) :: d_step { CAN_FREEZE(j) -> freeze(j); i = 0 }
#define DECIDE(j)                                                                             \
  :: d_step {                                                                                 \
       LIVES(j) && rank[j].frozen && !decision[rank[j].epoch].made && ALL_FROZEN(rank[j].epoch) ->  \
       most = rank[j].epoch; v = most; decide(v); i = 0                                                    \
     }
#define INSTALL(j) \
  :: d_step { LIVES(j) && rank[j].frozen && decision[rank[j].epoch].made -> install(j) }
#define CRASH(j) :: d_step { crashes && LIVES(j) -> crash(j); i = 0 }
#define SETTLE(j) :: d_step { MAY_SETTLE(j) -> decision[rank[j].epoch].settled = 1; settles-- }
#define START(j) :: d_step { LIVES(j) && !rank[j].closing && ENDED(j) -> rank[j].closing = 1 }
#define ANSWER(b, j)                                                                          \
  :: d_step {                                                                                 \
       LIVES(b) && LIVES(j) && rank[j].closing && !rank[j].closed && !IN(b, rank[j].held) ->        \
       answer(b, j)                                                                           \
     }
#ifdef CLOSES_AT_ONCE
#define ANSWERED(j) 1
#else
#define ANSWERED(j) ((rank[j].members & alive & ~BIT(j) & ~rank[j].held) == 0)
#endif
#define CLOSE(j)                                                                              \
  :: d_step {                                                                                 \
       LIVES(j) && rank[j].closing && !rank[j].closed && !rank[j].frozen && ANSWERED(j) ->          \
       rank[j].closed = 1                                                                           \
     }

proctype world() {
end_loop:
  do
  EACH(CALL0)
  PAIRS(LAND0)
#if CHANNELS > 1
  EACH(CALL1)
  PAIRS(LAND1)
#endif
  EACH(FREEZE)
  EACH(DECIDE)
  EACH(INSTALL)
  EACH(CRASH)
#if SETTLES > 0
  EACH(SETTLE)
#endif
  EACH(START)
#ifndef CLOSES_AT_ONCE
  PAIRS(ANSWER)
#endif
  EACH(CLOSE)
  od
}

init {
  atomic { run world() }
}
