/* The commit rule by itself: two competing proposals A (the earlier ballot) and B (the later) for the
 * view after one old view of N ranks; acknowledgements, promises, crashes in every order.
 *
 * Ranks other than the lowest slot are alike, so the state counts how many there are of each kind: a
 * kind is a set of DEAD | ACKED_A | PROMISED | ACKED_B. The lowest slot is kept apart, for rule (b).
 * A rank that has promised (it shares the suspicion of A's leader and said so in its row) acknowledges
 * A no more; B adopts A when a promise that it collected showed an acknowledgement of A.
 * A leader knows any part of the crashed ranks as dead; the part that helps it most is all those that
 * have not acknowledged, so that is what the rule is given.
 *
 * Asserted: when both have committed with different values, nobody lives who acknowledged the one that
 * committed first. And rule (c) keeps the survivors able to go on: when every living rank has
 * acknowledged, the rule holds.
 *
 * Wrong variants: SHRUNKEN_MAJORITY (the base loses the confirmed dead; fails from 5 ranks on, holds
 * up to 4), HALF_WITHOUT_LOWEST, NO_ADOPT, CRASHED_BY_SUSPICION (suspects count as dead in (c)),
 * NO_RULE_C (survivors cannot go on).
 */
#ifndef N
#define N 5
#endif

#define DEAD 1
#define ACKED_A 2
#define PROMISED 4
#define ACKED_B 8

byte others[16]; /* how many of the N - 1 other ranks are of each kind */
unsigned lowest : 4;
bit a_committed, b_committed, b_proposed, b_is_a;

hidden byte k, acked, dead_unacked, alive_acked, alive_count, alive_unacked;
hidden byte low_in, good;

inline add(kind, number, what) {
  if
  :: (kind) & what ->
     acked = acked + number;
     alive_acked = alive_acked + (((kind) & DEAD) -> 0 : number)
  :: else ->
     dead_unacked = dead_unacked + (((kind) & DEAD) -> number : 0);
     alive_unacked = alive_unacked + (((kind) & DEAD) -> 0 : number)
  fi
}

inline tally(what) {
  acked = 0;
  alive_acked = 0;
  dead_unacked = 0;
  alive_unacked = 0;
  add(lowest, 1, what);
  low_in = ((lowest & what) -> 1 : 0);
  k = 0;
  do
  :: k < 16 -> add(k, others[k], what); k++
  :: else -> break
  od
}

#if defined(SHRUNKEN_MAJORITY)
#define BASE (N - dead_unacked)
#else
#define BASE N
#endif
#define RULE_A (2 * acked > BASE)
#if defined(HALF_WITHOUT_LOWEST)
#define RULE_B (2 * acked == BASE)
#elif defined(SHRUNKEN_MAJORITY)
#define RULE_B 0
#else
#define RULE_B (2 * acked == BASE && low_in)
#endif
#if defined(NO_RULE_C)
#define RULE_C 0
#elif defined(CRASHED_BY_SUSPICION)
#define RULE_C (acked >= 1)
#else
#define RULE_C (alive_unacked == 0)
#endif
/* The leader, one of those who acknowledged, lives. */
#define COMMITS (alive_acked > 0 && (RULE_A || RULE_B || RULE_C))

#define CAN_CRASH(x) (((x) & DEAD) == 0)
#define CAN_ACK_A(x) (((x) & (DEAD | PROMISED | ACKED_A)) == 0)
#define CAN_PROMISE(x) (((x) & (DEAD | PROMISED)) == 0 && !b_proposed)
#define CAN_ACK_B(x) (b_proposed && ((x) & (DEAD | PROMISED | ACKED_B)) == PROMISED)

#define MOVE(x, flag) d_step { others[x]--; others[(x) | flag]++ }
#define KIND(x)                                              \
  :: others[x] && CAN_CRASH(x) -> MOVE(x, DEAD)              \
  :: others[x] && CAN_ACK_A(x) -> MOVE(x, ACKED_A)           \
  :: others[x] && CAN_PROMISE(x) -> MOVE(x, PROMISED)        \
  :: others[x] && CAN_ACK_B(x) -> MOVE(x, ACKED_B)

#define SHOWN(x) (((x) & (PROMISED | ACKED_A)) == (PROMISED | ACKED_A))

inline propose_b() {
  b_proposed = 1;
  b_is_a = 0;
#ifndef NO_ADOPT
  b_is_a = (SHOWN(lowest) -> 1 : 0);
  k = 0;
  do
  :: k < 16 -> b_is_a = ((others[k] && SHOWN(k)) -> 1 : b_is_a); k++
  :: else -> break
  od;
#endif
  k = 0
}

inline commit(mine, theirs, both) {
  tally(mine);
  if
  :: COMMITS ->
     if
     :: both && !b_is_a -> tally(theirs); assert(alive_acked == 0)
     :: else
     fi;
     good = 1
  :: else -> good = 0
  fi
}

active proctype ranks() {
  others[0] = N - 1;
  do
  KIND(0) KIND(1) KIND(2) KIND(3) KIND(4) KIND(5) KIND(6) KIND(7)
  KIND(8) KIND(9) KIND(10) KIND(11) KIND(12) KIND(13) KIND(14) KIND(15)
  :: CAN_CRASH(lowest) -> lowest = lowest | DEAD
  :: CAN_ACK_A(lowest) -> lowest = lowest | ACKED_A
  :: CAN_PROMISE(lowest) -> lowest = lowest | PROMISED
  :: CAN_ACK_B(lowest) -> lowest = lowest | ACKED_B
  :: d_step { !b_proposed && ((lowest & PROMISED) || others[PROMISED] || others[PROMISED | ACKED_A]) ->
       propose_b() }
  :: d_step { !a_committed -> commit(ACKED_A, ACKED_B, b_committed);
       a_committed = good;
       tally(ACKED_A);
       assert(alive_unacked > 0 || alive_acked == 0 || COMMITS);
       good = 0 }
  :: d_step { b_proposed && !b_committed -> commit(ACKED_B, ACKED_A, a_committed);
       b_committed = good;
       good = 0 }
  od
}
