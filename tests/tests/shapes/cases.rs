//! The tables: which program, what is done to it, and what it must come to.

use crate::scene::Step::{
    Attach, AttachOr, AttachOther, Cycles, Detach, Evicted, Exits, Faults, Go, KillAnnexd, KillStubs, Native, Refused,
    Run, Says, StopAnnexd, TakeOver, Within,
};
use crate::scene::{Case, Comes, Step};

/// What the programs come to when all is well.
pub const RIGHT: Comes = Comes::Right("right\n");

const fn case(name: &'static str, command: &'static [&'static str], steps: &'static [Step], comes: Comes) -> Case {
    Case { name, command, steps, comes }
}

pub const fn right(name: &'static str, command: &'static [&'static str], steps: &'static [Step]) -> Case {
    case(name, command, steps, RIGHT)
}

/// Filled, paged, told to go on once.
pub const PAGED: &[Step] = &[Run, Says("ready"), Evicted(24), Go];
/// Attached again and again while it works.
const BORROWED: &[Step] = &[Native, Says("ready"), Cycles(4), Go];
/// Without CAP_SYS_RESOURCE annexd can't lift a hard limit: then it says that this is why.
const LIMITED: &[Step] = &[Native, Says("ready"), AttachOr("CAP_SYS_RESOURCE"), Go];
const BLOCKED: &[Step] = &[Native, Says("blocked"), Cycles(3), Go];
const REPEATED: &[Step] = &[Run, Says("ready"), Evicted(24), Go, Faults(2000), Within(16), Go];

/// Threads and processes that end while others of the same memory go on.
pub const LIVES: &[Case] = &[
    right("main-thread-exits-1", &["main_thread_exits"], REPEATED),
    right("main-thread-exits-2", &["main_thread_exits"], REPEATED),
    right("main-thread-exits-3", &["main_thread_exits"], REPEATED),
    right("main-thread-exits-at-once", &["main_thread_exits"], &[Run, Says("ready"), Go, Faults(2000), Within(16), Go]),
    right(
        "leader-is-a-zombie-when-attached",
        &["main_thread_exits"],
        &[Native, Says("ready"), Go, Attach, Faults(2000), Within(16), Detach, Attach, Faults(1000), Go],
    ),
    right(
        "sharing-parent-ends-first",
        &["clone_vm", "parent"],
        &[Run, Says("ready"), Evicted(24), Go, Exits, Faults(2000), Within(16), Go],
    ),
    right(
        "sharing-child-ends-first",
        &["clone_vm", "child"],
        &[Run, Says("ready"), Evicted(24), Go, Says("child ended"), Faults(2000), Within(16), Go],
    ),
    right(
        "attached-parent-ends-first",
        &["clone_vm", "parent"],
        &[Native, Says("ready"), Attach, Evicted(24), Go, Exits, Faults(2000), Within(16), Go],
    ),
    right(
        "attached-child-ends-first",
        &["clone_vm", "child"],
        &[Native, Says("ready"), AttachOther, Evicted(24), Go, Says("child ended"), Faults(2000), Within(16), Go],
    ),
    right(
        "attached-child-outlives-its-parent",
        &["clone_vm", "parent"],
        &[Native, Says("ready"), AttachOther, Evicted(24), Go, Exits, Faults(2000), Within(16), Go],
    ),
    right(
        "another-thread-replaces-the-program",
        &["exec_thread"],
        &[Run, Says("ready"), Evicted(24), Go, Says("again"), Faults(2000), Within(16), Go],
    ),
    case(
        "init-of-a-namespace-ends",
        &["unshare", "-pf", "--kill-child", "./pid_init"],
        &[Run, Says("ready"), Evicted(24), Go, Exits],
        RIGHT,
    ),
    case("sharing-process-clears-its-tid", &["clone_vm_clears"], PAGED, Comes::Right("word in\nright\n")),
    right(
        "next-child-begins-a-namespace",
        &["begins_namespace"],
        &[Native, Says("ready"), Refused("unshare(CLONE_NEWPID)"), Go],
    ),
    right(
        "the-namespace-of-its-children-has-ended",
        &["begins_namespace", "ended"],
        &[Native, Says("ready"), Refused("makes its processes in another PID namespace"), Go],
    ),
    right(
        "scheduled-by-deadline",
        &["chrt", "-d", "-T", "5000000", "-D", "20000000", "-P", "20000000", "0", "./holds", "40"],
        &[Native, Says("ready"), Refused("SCHED_DEADLINE"), Go],
    ),
    right("main-thread-in-vfork", &["main_thread_in_vfork"], &[Native, Says("ready"), AttachOr("vfork"), Go]),
];

/// A thread that is borrowed for a moment goes on as if nothing had been.
pub const BORROWING: &[Case] = &[
    right("dispatched-calls-run", &["syscall_user_dispatch"], PAGED),
    right("dispatched-calls-attach", &["syscall_user_dispatch"], BORROWED),
    right("only-a-thread-has-a-filter", &["seccomp_thread"], &[Native, Says("ready"), Attach, Evicted(24), Go]),
    right("restartable-sequence", &["rseq_section"], &[Native, Says("ready"), Cycles(10), Go]),
    right("blocked-in-recv", &["blocked", "recv"], BLOCKED),
    right("blocked-in-send", &["blocked", "send"], BLOCKED),
    right("blocked-in-accept", &["blocked", "accept"], BLOCKED),
    right("blocked-in-epoll-wait", &["blocked", "epoll_wait"], BLOCKED),
    right("blocked-in-epoll-pwait2", &["blocked", "epoll_pwait2"], BLOCKED),
    right("blocked-in-poll", &["blocked", "poll"], BLOCKED),
    right("blocked-in-sigtimedwait", &["blocked", "sigtimedwait"], BLOCKED),
    right("blocked-in-semtimedop", &["blocked", "semtimedop"], BLOCKED),
    right("blocked-in-futex", &["blocked", "futex"], BLOCKED),
    right("blocked-in-nanosleep", &["blocked", "nanosleep"], BLOCKED),
    right("blocked-in-io-getevents", &["blocked", "io_getevents"], BLOCKED),
    right("blocked-in-io-uring-enter", &["blocked", "io_uring_enter"], BLOCKED),
    right("no-descriptors", &["rlimits", "nofile"], LIMITED),
    right("no-processes", &["rlimits", "nproc"], LIMITED),
    right("no-address-space", &["rlimits", "as"], LIMITED),
];

/// Memory that is locked, and memory that the kernel touches where it can't wait.
pub const MAPPINGS: &[Case] = &[
    right("locked-before-current", &["mlockall_before", "cur"], &[Run, Says("ready"), Go]),
    right("locked-before-future", &["mlockall_before", "fut"], &[Run, Says("ready"), Go]),
    right("locked-before-on-fault", &["mlockall_before", "onfault"], &[Run, Says("ready"), Go]),
    right("locked-while-paged-current", &["mlockall_while_paged", "cur"], LOCKED),
    right("locked-while-paged-future", &["mlockall_while_paged", "fut"], LOCKED),
    right("locked-while-paged-both", &["mlockall_while_paged", "both"], LOCKED),
    right("locked-while-paged-both-again", &["mlockall_while_paged", "both"], LOCKED),
    right(
        "holes-are-filled",
        &["fills_holes"],
        &[Run, Says("ready"), Evicted(24), Go, Says("filled"), Faults(5000), Within(16), Go],
    ),
    case("shared-memory-over-what-is-out", &["shm_remap"], PAGED, Comes::Right("first out\nthen out\nright\n")),
    case(
        "shared-memory-over-what-is-all-out",
        &["shm_remap", "all"],
        PAGED,
        Comes::Right("first out\nthen out\nright\n"),
    ),
    right("guards-beside-what-is-touched", &["guards"], PAGED),
    right("what-was-protected-in-part-moves", &["moves_what_was_protected"], PAGED),
    right("what-was-inaccessible-in-part-moves", &["moves_what_was_protected", "none"], PAGED),
    right("what-was-inaccessible-and-is-unaccounted-moves", &["moves_what_was_protected", "noreserve"], PAGED),
    right("futex-wait", &["futexes", "wait"], PAGED),
    right("process-title", &["process_title"], PAGED),
    right("thread-id-cleared-elsewhere", &["cleartid_elsewhere"], PAGED),
    right("owner-of-a-robust-lock-dies", &["robust_lock"], PAGED),
    limit(
        "futex-wake-op",
        &["futexes", "wake_op"],
        "the kernel looks at the second word where it can't wait for a page",
        "on a page that is out: Bad address",
    ),
    limit(
        "futex-lock-pi",
        &["futexes", "lock_pi"],
        "the kernel takes a priority-inheriting lock where it can't wait for a page",
        "on a page that is out: Bad address",
    ),
    limit(
        "own-userfaultfd-later",
        &["own_userfaultfd_later"],
        "a mapping has one userfaultfd at most",
        "registered memory that is out: Device or resource busy",
    ),
    limit(
        "move-with-a-neighbour",
        &["mremap_merged_neighbours"],
        "a registered mapping does not merge with the one beside it, and mremap takes one mapping",
        "moved memory that is out: Bad address\n0 bytes of it lost",
    ),
    limit(
        "setns-time",
        &["setns_time"],
        "the stub shares the memory, and only a process with a memory of its own may enter a time namespace",
        "setns(time): Too many users",
    ),
    limit(
        "vmsplice-write-after",
        &["vmsplice_write_after"],
        "the pipe holds the page that the program had; the program has another since",
        "a page that is out: pipe has A, memory has B",
    ),
];

const LOCKED: &[Step] = &[Run, Says("ready"), Evicted(24), Faults(1000), Go, Says("locked"), Go];

/// Not a failure: `docs/limits.md` tells it.
const fn limit(name: &'static str, command: &'static [&'static str], why: &'static str, text: &'static str) -> Case {
    case(name, command, PAGED, Comes::Limit { why, code: 1, text })
}

/// Parents, children and those that have left.
pub const FAMILIES: &[Case] = &[
    right("a-daemon", &["daemonize"], &[Run, Exits, Says("ready"), Evicted(24), Faults(1000), Within(16), Go]),
    right(
        "a-daemon-of-a-shell",
        &["sh", "-c", "(setsid ./holds 40 &)"],
        &[Run, Exits, Says("ready"), Evicted(24), Faults(1000), Within(16), Go],
    ),
    right(
        "a-child-that-only-reads",
        &["child_reads"],
        &[Run, Says("ready"), Evicted(24), Go, Says("child"), Faults(5000), Within(16), Go],
    ),
    right("a-child-gives-memory-away", &["child_frees"], PAGED),
    right("a-thread-moves-a-mapping-as-children-are-forked", &["moves_around_forks"], PAGED),
    right("a-child-unmaps-everything", &["sh", "-c", "./unmaps_everything; test $? = 139 && echo right"], PAGED),
    right("a-subreaper", &["subreaper_zombies"], &[Run]),
    right("wait-wall", &["wait_wall"], PAGED),
    right("wait-wall-of-a-shell", &["wait_wall.sh"], &[Run, Says("ready"), Evicted(4), Go]),
    right("stub-killed-while-idle", &["idle"], &[Run, Says("ready"), Evicted(28), KillStubs, Go]),
    right(
        "stub-killed-while-moving",
        &["holds", "40"],
        &[
            Run,
            Says("ready"),
            Evicted(24),
            KillStubs,
            Faults(2000),
            Within(16),
            KillStubs,
            Faults(2000),
            Within(16),
            Go,
        ],
    ),
    right(
        "stub-killed-and-then-detached",
        &["idle"],
        &[Native, Says("ready"), Attach, Evicted(28), KillStubs, Detach, Attach, Evicted(28), Go],
    ),
];

/// The same again across the ends of annexd; one after the other, since annexd is everybody's.
pub const AFTER_DEATHS: &[Case] = &[
    right(
        "main-thread-exits-then-annexd-dies",
        &["main_thread_exits", "idle"],
        &[Run, Says("ready"), Evicted(24), Go, KillAnnexd, Go],
    ),
    right(
        "annexd-dies-then-main-thread-exits",
        &["main_thread_exits"],
        &[
            Run,
            Says("ready"),
            Evicted(24),
            KillAnnexd,
            Go,
            Faults(2000),
            Within(16),
            KillAnnexd,
            Faults(2000),
            Within(16),
            Go,
        ],
    ),
    right(
        "sharing-parent-ends-then-annexd-dies",
        &["clone_vm", "parent"],
        &[Run, Says("ready"), Evicted(24), Go, Exits, KillAnnexd, Faults(2000), Within(16), Go],
    ),
    right(
        "sharing-child-ends-then-annexd-dies",
        &["clone_vm", "child"],
        &[
            Native,
            Says("ready"),
            AttachOther,
            Evicted(24),
            Go,
            Says("child ended"),
            KillAnnexd,
            Faults(2000),
            Within(16),
            Go,
        ],
    ),
    right(
        "stub-and-annexd-die",
        &["holds", "40"],
        &[
            Run,
            Says("ready"),
            Evicted(24),
            KillStubs,
            KillAnnexd,
            Faults(2000),
            KillAnnexd,
            KillStubs,
            Faults(2000),
            Within(16),
            Go,
        ],
    ),
    right(
        "idle-stub-and-annexd-die",
        &["idle"],
        &[Run, Says("ready"), Evicted(28), KillStubs, KillAnnexd, KillAnnexd, Go],
    ),
];

pub const AFTER_CHANGES: &[Case] = &[
    right(
        "main-thread-exits-then-another-annexd-takes-over",
        &["main_thread_exits"],
        &[Run, Says("ready"), Evicted(24), Go, Faults(500), TakeOver, Faults(2000), Within(16), Go],
    ),
    right(
        "main-thread-exits-then-annexd-stops",
        &["main_thread_exits"],
        &[Run, Says("ready"), Evicted(24), Go, Faults(500), StopAnnexd, Go],
    ),
    right(
        "sharing-parent-ends-then-annexd-stops",
        &["clone_vm", "parent"],
        &[Native, Says("ready"), Attach, Evicted(24), Go, Exits, StopAnnexd, Go],
    ),
    right(
        "nothing-evicted-then-annexd-dies",
        &["holds", "4", "40"],
        &[Run, Says("ready"), KillAnnexd, Go, Says("grown"), Evicted(24), Within(16), Go],
    ),
    right(
        "nothing-evicted-then-another-annexd-takes-over",
        &["holds", "4", "40"],
        &[Run, Says("ready"), TakeOver, Go, Says("grown"), Evicted(24), Within(16), Go],
    ),
    right(
        "a-daemon-then-annexd-dies",
        &["daemonize"],
        &[Run, Exits, Says("ready"), Evicted(24), KillAnnexd, Faults(1000), Within(16), Go],
    ),
    right("stub-killed-then-annexd-stops", &["idle"], &[Run, Says("ready"), Evicted(28), KillStubs, StopAnnexd, Go]),
];
