/* View changes of MEP's membership with one replicated operation (an allreduce) per epoch.
 *
 * One step of the model is what the production state machine does on one event: a peer's state row
 * arrives (or the exit of a process is seen, a rank is suspected, a contribution lands) and the rank
 * reacts to the end. Only rows and contributions are visible to others, each reaches one peer at a
 * time, and a crash may fall between any two of them.
 *
 * Invariants, asserted where they could break:
 *   A1  one view per epoch: a committed view (members and N*) is the only one of its epoch while
 *       anyone lives who acknowledged or installed it
 *   A2  same success, same bytes: a success in an epoch is over exactly the members of its view
 *   A3  uniform decision: whoever installs N* = 1 holds the result, whoever installs N* = 0 has not
 *       returned success
 *   A4  `dead` is never set for a living process
 * With LIVENESS also, whenever nothing but a further failure can happen:
 *   L1  every living rank has its operation done in a view of unsuspected ranks, or cannot have a
 *       quorum (its call returns MEP_ERR_NO_QUORUM)
 *   L2  without false suspicion all survivors are in one view of exactly the survivors
 *   L3  one false suspicion and no crash: all but one go on together
 * and no cycle is without `progress_quiet` (run with -DNP), so every execution gets there.
 * Macros (sizes, adversaries, wrong variants): see README.md. */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES (N - 1)
#endif
#ifndef FALSE_SUSPICIONS
#define FALSE_SUSPICIONS 0
#endif
#ifndef EPOCHS
#define EPOCHS (N - 1)
#endif
#if EPOCHS > 3
#define EPOCH_BITS 3
#else
#define EPOCH_BITS 2 /* a row of five ranks is then one word */
#endif
#define ALL ((1 << N) - 1)
#define BIT(i) (1 << (i))
#define IN(i, set) (((set) >> (i)) & 1)
#define COUNT(s) (((s) & 1) + (((s) >> 1) & 1) + (((s) >> 2) & 1) + (((s) >> 3) & 1) + (((s) >> 4) & 1))
#define LOWEST(s) \
  (((s) & 1) -> 0 : (((s) & 2) -> 1 : (((s) & 4) -> 2 : (((s) & 8) -> 3 : (((s) & 16) -> 4 : 7)))))

/* A state row: one writer, pushed whole. The proposal that a rank has accepted (and, by that,
 * acknowledged) is (ballot, leader, next_members, next_done); ballot 0 is none. */
typedef Row {
  unsigned epoch : EPOCH_BITS;
  unsigned frozen : 1;
  unsigned done : 1;       /* held the result when it froze, or has caught up since */
  unsigned entry_done : 1; /* N* of the change that led to this epoch */
  unsigned ballot : 3;
  unsigned leader : 3;
  unsigned next_done : 1;
  unsigned members : N;
  unsigned suspects : N;
  unsigned dead : N; /* confirmed */
  unsigned next_members : N
};

/* A rank's state beside its row: of the operation of its epoch. */
typedef Memory {
#ifdef CONTRIBUTIONS
  unsigned have : N; /* contributions that have landed */
#endif
  unsigned holds : 1;   /* the result */
  unsigned success : 1; /* the call has returned success */
};

/* Ghost: the view of an epoch as first committed; it binds while anyone who acknowledged or installed
 * it lives. `entered`: who has been in the epoch, and so may have contributed. */
typedef View {
  unsigned members : N;
  unsigned done : 1;
  unsigned bound : N;
  unsigned entered : N
};

Row table[N * N]; /* table[j * N + i]: row i as rank j knows it; j == i: its own */
Memory memory[N];
View agreed[EPOCHS + 1];
unsigned alive : N = ALL;
byte crashes = CRASHES;
byte false_suspicions = FALSE_SUSPICIONS;
byte me, peer;
#define OWN(j) table[(j) * N + (j)]
#define SEEN(j, i) table[(j) * N + (i)]
#define SAME_ROW(a, b)                                                                        \
  (a.epoch == b.epoch && a.frozen == b.frozen && a.done == b.done && a.ballot == b.ballot &&  \
   a.suspects == b.suspects && a.dead == b.dead && a.members == b.members &&                  \
   a.leader == b.leader && a.next_done == b.next_done && a.next_members == b.next_members && \
   a.entry_done == b.entry_done)

/* The commit rule: acknowledgements `set` against the old view, with what rank j knows as dead. */
#define HALF_OR_MORE(set, base) \
  (2 * COUNT(set) > COUNT(base) || (2 * COUNT(set) == COUNT(base) && IN(LOWEST(base), set)))
#define NONE_LEFT(j, set) ((OWN(j).members & ~OWN(j).dead & ~(set)) == 0)
#if defined(SHRUNKEN_MAJORITY)
#define QUORUM(j, set) (2 * COUNT(set) > COUNT(OWN(j).members & ~OWN(j).dead))
#elif defined(NO_QUORUM_RULE)
#define QUORUM(j, set) 1
#else
#define QUORUM(j, set) (HALF_OR_MORE(set, OWN(j).members) || NONE_LEFT(j, set))
#endif

/* Scratch of one step; no part of the state. */
hidden byte r, live, lead, good, again, need, holder, top, top_leader, value_members, value_done;

inline forget_row(j, i) {
  SEEN(j, i).epoch = 0;
  SEEN(j, i).frozen = 0;
  SEEN(j, i).done = 0;
  SEEN(j, i).entry_done = 0;
  SEEN(j, i).ballot = 0;
  SEEN(j, i).leader = 0;
  SEEN(j, i).next_done = 0;
  SEEN(j, i).members = 0;
  SEEN(j, i).suspects = 0;
  SEEN(j, i).dead = 0;
  SEEN(j, i).next_members = 0
}

inline receive_row(j, i) {
  SEEN(j, i).epoch = OWN(i).epoch;
  SEEN(j, i).frozen = OWN(i).frozen;
  SEEN(j, i).done = OWN(i).done;
  SEEN(j, i).entry_done = OWN(i).entry_done;
  SEEN(j, i).ballot = OWN(i).ballot;
  SEEN(j, i).leader = OWN(i).leader;
  SEEN(j, i).next_done = OWN(i).next_done;
  SEEN(j, i).members = OWN(i).members;
  SEEN(j, i).suspects = OWN(i).suspects;
  SEEN(j, i).dead = OWN(i).dead;
  SEEN(j, i).next_members = OWN(i).next_members
}

/* Rows of a suspect are never read again; forgetting them merges states. */
inline forget_suspects(j) {
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, OWN(j).suspects) -> forget_row(j, r)
     :: else
     fi;
     r++
  :: else -> break
  od
}

inline succeed(j) {
  memory[j].holds = 1;
  memory[j].success = 1;
#ifdef CONTRIBUTIONS
  assert((memory[j].have | BIT(j)) == agreed[OWN(j).epoch].members); /* A2 */
  memory[j].have = 0
#else
  assert(OWN(j).members == agreed[OWN(j).epoch].members) /* A2 */
#endif
}

inline install(j, acknowledged, new_members, new_done) {
  if
  :: agreed[OWN(j).epoch + 1].bound & alive ->
     assert(agreed[OWN(j).epoch + 1].members == new_members); /* A1 */
     assert(agreed[OWN(j).epoch + 1].done == new_done)
  :: else ->
     agreed[OWN(j).epoch + 1].bound = 0;
     agreed[OWN(j).epoch + 1].entered = 0
  fi;
  agreed[OWN(j).epoch + 1].members = new_members;
  agreed[OWN(j).epoch + 1].done = new_done;
  agreed[OWN(j).epoch + 1].bound = agreed[OWN(j).epoch + 1].bound | (acknowledged) | BIT(j);
  agreed[OWN(j).epoch + 1].entered = agreed[OWN(j).epoch + 1].entered | BIT(j);
  assert(new_done -> memory[j].holds : !memory[j].success); /* A3 */
#ifdef REACH_SECOND
  assert(OWN(j).epoch == 0);
#endif
  OWN(j).epoch = OWN(j).epoch + 1;
  OWN(j).members = new_members;
  OWN(j).entry_done = new_done;
  OWN(j).suspects = OWN(j).suspects | (ALL & ~OWN(j).members);
  OWN(j).dead = OWN(j).dead & OWN(j).members;
  OWN(j).frozen = 0;
  OWN(j).done = 0;
  OWN(j).ballot = 0;
  OWN(j).leader = 0;
  OWN(j).next_done = 0;
  OWN(j).next_members = 0;
#ifdef CONTRIBUTIONS
  memory[j].have = 0;
#endif
  memory[j].holds = 0;
  memory[j].success = 0;
  forget_suspects(j);
  if
  :: OWN(j).members == BIT(j) -> succeed(j)
  :: else
  fi;
  again = 1
}

/* Finds a rank that can give rank j the result: a live, frozen member of its epoch that holds it. */
inline find_holder(j) {
  holder = memory[j].holds;
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, live) && IN(r, alive) && SEEN(j, r).epoch == OWN(j).epoch &&
        SEEN(j, r).frozen && SEEN(j, r).done -> holder = 1
     :: else
     fi;
     r++
  :: else -> break
  od
}

/* Accept a proposal, which acknowledges it; only with the result in hand when N* asks for it. */
inline accept(j, number, proposer, set, result) {
#ifndef ACK_BEFORE_CATCH_UP
  find_holder(j);
  if
  :: result == 0 || holder ->
#ifdef REACH_CATCH_UP
     assert(result == 0 || memory[j].holds);
#endif
     memory[j].holds = memory[j].holds | result;
     OWN(j).done = OWN(j).done | result;
#else
  if
  :: true ->
#endif
     OWN(j).ballot = number;
     OWN(j).leader = proposer;
     OWN(j).next_members = set;
     OWN(j).next_done = result
  :: else
  fi
}

inline propose(j) {
  good = (OWN(j).epoch < EPOCHS);
  top = 0;
  top_leader = 0;
  value_members = live;
  value_done = OWN(j).done;
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, live) ->
        if
        :: SEEN(j, r).epoch != OWN(j).epoch || !SEEN(j, r).frozen ||
           ((SEEN(j, r).suspects ^ OWN(j).suspects) & OWN(j).members) -> good = 0
        :: else
        fi;
#ifdef NSTAR_MIN
        value_done = value_done & SEEN(j, r).done;
#else
        value_done = value_done | SEEN(j, r).done;
#endif
     :: else
     fi;
     r++
  :: else -> break
  od;
#ifndef NO_ADOPT
  r = 0;
  do
  :: r < N ->
     if
     :: good && IN(r, live) && SEEN(j, r).ballot &&
        (SEEN(j, r).ballot > top || (SEEN(j, r).ballot == top && SEEN(j, r).leader > top_leader)) ->
        top = SEEN(j, r).ballot;
        top_leader = SEEN(j, r).leader;
        value_members = SEEN(j, r).next_members;
        value_done = SEEN(j, r).next_done
     :: else
     fi;
     r++
  :: else -> break
  od;
#else
  r = 0;
  do
  :: r < N ->
     top = ((IN(r, live) && SEEN(j, r).ballot > top) -> SEEN(j, r).ballot : top);
     r++
  :: else -> break
  od;
#endif
  if
  :: good && IN(j, value_members) ->
#ifdef REACH_ADOPT
     assert(top == 0 || value_members == live);
#endif
#ifdef REACH_SECOND_ADOPT
     assert(top < 2);
#endif
     accept(j, (top + 1), j, value_members, value_done)
  :: else
  fi
}

inline commit(j) {
  need = OWN(j).next_members & ~OWN(j).suspects;
  good = QUORUM(j, need);
#ifdef WAIT_SUSPECTED
  need = OWN(j).next_members;
#endif
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, need) &&
        (SEEN(j, r).epoch != OWN(j).epoch || SEEN(j, r).ballot != OWN(j).ballot ||
         SEEN(j, r).leader != j) -> good = 0
     :: else
     fi;
     r++
  :: else -> break
  od;
  if
  :: good ->
#ifdef REACH_RULE_C
     assert(HALF_OR_MORE(need, OWN(j).members));
#endif
     value_members = OWN(j).next_members;
     value_done = OWN(j).next_done;
     install(j, need, value_members, value_done)
  :: else
  fi
}

/* Everything that rank j does of itself with what it knows. */
inline react(j) {
  do
  :: again = 0;
     if
     :: (OWN(j).suspects & OWN(j).members) != 0 ->
        if
        :: !OWN(j).frozen -> OWN(j).frozen = 1; OWN(j).done = memory[j].holds
        :: else
        fi;
        live = OWN(j).members & ~OWN(j).suspects;
        lead = LOWEST(live);
        if
        :: lead == j ->
           if
           :: OWN(j).ballot == 0 || OWN(j).leader != j -> propose(j)
           :: else
           fi;
           if
           :: OWN(j).ballot && OWN(j).leader == j -> commit(j)
           :: else
           fi
        :: lead != j && SEEN(j, lead).epoch == OWN(j).epoch && SEEN(j, lead).leader == lead &&
           SEEN(j, lead).ballot > OWN(j).ballot && IN(j, SEEN(j, lead).next_members) ->
           accept(j, SEEN(j, lead).ballot, lead, SEEN(j, lead).next_members,
                  SEEN(j, lead).next_done)
        :: else
        fi
     :: else
     fi;
     if
     :: again
     :: else -> break
     fi
  od
}

/* Rank j learns from the row of peer i. An accusation of j by i is answered in kind: j can no longer
 * count on i, and the others decide between the two. */
inline learn(j, i) {
  OWN(j).dead = OWN(j).dead | (SEEN(j, i).dead & OWN(j).members);
  OWN(j).suspects = OWN(j).suspects | ((SEEN(j, i).suspects | SEEN(j, i).dead) & ~BIT(j));
  if
  :: IN(j, SEEN(j, i).suspects) || SEEN(j, i).epoch > OWN(j).epoch + 1 ||
     (SEEN(j, i).epoch == OWN(j).epoch + 1 && !IN(j, SEEN(j, i).members)) ->
     OWN(j).suspects = OWN(j).suspects | BIT(i)
  :: else
  fi;
  assert((OWN(j).dead & alive) == 0); /* A4 */
  if
  :: !IN(i, OWN(j).suspects) && SEEN(j, i).epoch == OWN(j).epoch + 1 ->
     memory[j].holds = memory[j].holds | SEEN(j, i).entry_done; /* contributions are retained at i */
     install(j, 0, SEEN(j, i).members, SEEN(j, i).entry_done)
  :: else
  fi;
  forget_suspects(j)
}

inline suspect(j, k) {
  OWN(j).suspects = OWN(j).suspects | BIT(k);
#ifdef SUSPECT_IS_DEAD
  OWN(j).dead = OWN(j).dead | BIT(k);
#ifndef REACH_CONSEQUENCE
  assert((OWN(j).dead & alive) == 0); /* A4 */
#endif
#endif
  forget_suspects(j)
}

/* For a crashed rank only `alive` matters from now on. */
inline crash(k) {
  alive = alive & ~BIT(k);
  crashes = crashes - 1;
  r = 0;
  do
  :: r < N -> forget_row(k, r); r++
  :: else -> break
  od;
#ifdef CONTRIBUTIONS
  memory[k].have = 0;
#endif
  memory[k].holds = 0;
  memory[k].success = 0
}
#define BOTH_ALIVE(i, j) (IN(i, alive) && IN(j, alive))
#define CAN_PUSH(i, j) \
  (BOTH_ALIVE(i, j) && !IN(i, OWN(j).suspects) && !SAME_ROW(SEEN(j, i), OWN(i)))
#define CAN_CONFIRM(j, k) \
  (IN(j, alive) && !IN(k, alive) && IN(k, OWN(j).members) && !IN(k, OWN(j).dead))
#ifdef COMPLETE_AFTER_FREEZE
#define OPEN(j) (IN(j, alive) && !memory[j].holds)
#else
#define OPEN(j) (IN(j, alive) && !memory[j].holds && !OWN(j).frozen)
#endif
/* A contribution of i lands at j, and the last completes the operation. When contributions are not
 * kept apart: j may complete as soon as all members have been in the epoch, for landings are seen by
 * nobody else, and what a crashed rank sent may have landed before. */
#define CAN_LAND(i, j)                                                                   \
  (OPEN(j) && IN(i, alive) && OWN(i).epoch == OWN(j).epoch && IN(i, OWN(j).members) &&   \
   !IN(i, memory[j].have))
#define CAN_COMPLETE(j) (OPEN(j) && (OWN(j).members & ~agreed[OWN(j).epoch].entered) == 0)
#ifdef CUT
#define CAN_BE_CUT(j, k) (IN(j, CUT) != IN(k, CUT))
#else
#define CAN_BE_CUT(j, k) 1
#endif
#ifndef ACCUSERS
#define ACCUSERS ALL
#endif
#ifndef CRASHABLE
#define CRASHABLE ALL
#endif
#ifdef CRASH_AFTER_VIEW
#define MAY_CRASH(k) (IN(k, CRASHABLE) && agreed[1].bound != 0)
#else
#define MAY_CRASH(k) IN(k, CRASHABLE)
#endif
#define CAN_SUSPECT(j, k)                                                             \
  (false_suspicions && IN(j, alive) && IN(k, OWN(j).members) && !IN(k, OWN(j).suspects) && \
   IN(j, ACCUSERS) && CAN_BE_CUT(j, k))
#define PUSH(i, j) :: atomic { CAN_PUSH(i, j) -> me = j; peer = i; goto pushed }
#define CONFIRM(j, k) :: atomic { CAN_CONFIRM(j, k) -> me = j; peer = k; goto confirmed }
#define LAND(i, j) :: d_step { CAN_LAND(i, j) -> land(i, j) }
#define SUSPECT(j, k) :: atomic { CAN_SUSPECT(j, k) -> me = j; peer = k; goto suspected }
#define COMPLETE(j) :: d_step { CAN_COMPLETE(j) -> succeed(j) }
#define CRASH(k) :: d_step { crashes && IN(k, alive) && MAY_CRASH(k) -> crash(k) }
#if N == 2
#define EACH(F) F(0) F(1)
#define PAIRS(F) F(0, 1) F(1, 0)
#elif N == 3
#define EACH(F) F(0) F(1) F(2)
#define PAIRS(F) F(0, 1) F(0, 2) F(1, 0) F(1, 2) F(2, 0) F(2, 1)
#elif N == 4
#define EACH(F) F(0) F(1) F(2) F(3)
#define PAIRS(F)                                                                      \
  F(0, 1) F(0, 2) F(0, 3) F(1, 0) F(1, 2) F(1, 3) F(2, 0) F(2, 1) F(2, 3) F(3, 0) F(3, 1) F(3, 2)
#else
#define EACH(F) F(0) F(1) F(2) F(3) F(4)
#define PAIRS(F)                                                                      \
  F(0, 1) F(0, 2) F(0, 3) F(0, 4) F(1, 0) F(1, 2) F(1, 3) F(1, 4) F(2, 0) F(2, 1)     \
  F(2, 3) F(2, 4) F(3, 0) F(3, 1) F(3, 2) F(3, 4) F(4, 0) F(4, 1) F(4, 2) F(4, 3)
#endif

inline land(i, j) {
  memory[j].have = memory[j].have | BIT(i);
  if
  :: (memory[j].have | BIT(j)) == OWN(j).members -> succeed(j)
  :: else
  fi
}
#define SETTLED(j)                                                                    \
  (!IN(j, alive) ||                                                                   \
   (!OWN(j).frozen && memory[j].holds && (OWN(j).members & OWN(j).suspects) == 0) ||      \
   !QUORUM(j, (OWN(j).members & ~OWN(j).suspects)))
#define ON_THE_WAY(j) (IN(j, alive) && !OWN(j).frozen && memory[j].holds)
#define SURVIVOR(j) (!IN(j, alive) || (OWN(j).members == alive && ON_THE_WAY(j)))

inline check_quiet() {
  r = 0;
  do
  :: r < N ->
     assert(SETTLED(r)); /* L1 */
#if FALSE_SUSPICIONS == 0
     assert(SURVIVOR(r)); /* L2 */
#endif
     r++
  :: else -> break
  od;
#if FALSE_SUSPICIONS == 1
  need = 0;
  r = 0;
  do
  :: r < N -> need = need + ON_THE_WAY(r); r++
  :: else -> break
  od;
  assert(crashes < CRASHES || need >= N - 1); /* L3 */
#endif
  need = 0
}

proctype world() {
loop:
  do
  PAIRS(PUSH)
  PAIRS(CONFIRM)
#ifdef CONTRIBUTIONS
  PAIRS(LAND)
#elif !defined(IDLE)
  EACH(COMPLETE)
#endif
#ifdef LIVENESS
  :: atomic { else -> check_quiet() };
progress_quiet:
     true
#endif
  od;
  atomic {
    true; /* a jump into an atomic sequence goes on in it */
pushed:
    true;
    d_step { receive_row(me, peer); learn(me, peer); react(me); me = 0; peer = 0 };
    goto loop
  };
  atomic {
    true; /* a jump into an atomic sequence goes on in it */
confirmed:
    true;
    d_step {
      OWN(me).dead = OWN(me).dead | BIT(peer);
      suspect(me, peer);
      react(me);
      me = 0;
      peer = 0
    };
    goto loop
  }
}

/* Failures come from outside: whether the world is quiet does not depend on them. */
proctype adversary() {
end_loop:
  do
  EACH(CRASH)
#if FALSE_SUSPICIONS > 0
  PAIRS(SUSPECT)
#endif
  od;
#if FALSE_SUSPICIONS > 0
  atomic {
    true; /* a jump into an atomic sequence goes on in it */
suspected:
    true;
    d_step {
      false_suspicions = false_suspicions - 1;
      suspect(me, peer);
      react(me);
      me = 0;
      peer = 0
    };
    goto end_loop
  }
#endif
}

init {
  d_step {
    me = 0;
    do
    :: me < N ->
       peer = 0;
       do
       :: peer < N -> SEEN(me, peer).members = ALL; peer++
       :: else -> break
       od;
       me++
    :: else -> break
    od;
    me = 0;
    peer = 0;
    agreed[0].members = ALL;
    agreed[0].entered = ALL
  };
  atomic { run world(); run adversary() }
}
