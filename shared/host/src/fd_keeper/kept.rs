//! The names of what is kept.

/// What a kept descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// A space's userfaultfd, by the space's number.
    Userfaultfd(u64),
    /// A process, by its PID: whom the keeper ends if no successor comes.
    Process(i32),
    /// A space's page table, by the space's number.
    Table(u64),
    /// The apps.
    Ledger,
    /// The pool's extent table.
    Extents,
    /// The pool's slot table.
    Slots,
    /// The spill file, and with it its lock.
    Spill,
    /// The KV API's table of log pages.
    LogPages,
    /// The userfaultfd that a space's FORK brought, which was read and not applied; by the space's
    /// number and the change's.
    Forked(u32, u32),
    /// The ring of a region, and its bell, by the space's number.
    Ring(u64),
    Bell(u64),
    /// What is open of an address space (`/proc/PID/mem`, `/proc/PID/pagemap`), by the space's
    /// number.
    Memory(u64),
    Pagemap(u64),
    /// A space's stub (a pidfd), by the space's number: it is ended once its program is.
    Stub(u64),
    /// A process of an app that has nothing evicted, by its PID: it needs no successor, but is to
    /// be known to one.
    Member(i32),
    /// What happened.
    Events,
}

impl Kept {
    /// As two numbers: kind (never 0) and which.
    pub(super) fn encode(self) -> (u32, u64) {
        match self {
            Kept::Userfaultfd(space) => (1, space),
            Kept::Process(pid) => (2, pid as u64),
            Kept::Table(space) => (3, space),
            Kept::Ledger => (4, 0),
            Kept::Extents => (5, 0),
            Kept::Slots => (6, 0),
            Kept::Spill => (8, 0),
            Kept::LogPages => (9, 0),
            Kept::Ring(space) => (10, space),
            Kept::Bell(space) => (11, space),
            Kept::Memory(space) => (12, space),
            Kept::Pagemap(space) => (13, space),
            Kept::Stub(space) => (14, space),
            Kept::Member(pid) => (15, pid as u64),
            Kept::Events => (16, 0),
            Kept::Forked(space, change) => (7, u64::from(space) << 32 | u64::from(change)),
        }
    }

    /// Whether it is of use without the processes that it is about: only then does the service
    /// manager get it too.
    pub(super) fn is_for_store(self) -> bool {
        use Kept::{Forked, Member, Memory, Pagemap, Process, Stub};
        !matches!(self, Process(_) | Forked(..) | Memory(_) | Pagemap(_) | Stub(_) | Member(_))
    }

    pub(super) fn decode(kind: u32, which: u64) -> Option<Kept> {
        Some(match kind {
            1 => Kept::Userfaultfd(which),
            2 => Kept::Process(which as i32),
            3 => Kept::Table(which),
            4 => Kept::Ledger,
            5 => Kept::Extents,
            6 => Kept::Slots,
            8 => Kept::Spill,
            9 => Kept::LogPages,
            10 => Kept::Ring(which),
            11 => Kept::Bell(which),
            12 => Kept::Memory(which),
            13 => Kept::Pagemap(which),
            14 => Kept::Stub(which),
            15 => Kept::Member(which as i32),
            16 => Kept::Events,
            7 => Kept::Forked((which >> 32) as u32, which as u32),
            _ => return None,
        })
    }
}
