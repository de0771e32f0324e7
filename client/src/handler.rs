//! SIGBUS: what a thread does that meets a page which is not there.
//!
//! All of this runs in a signal handler: no allocation, no lock, nothing of the C library but what
//! is safe there. Every other signal is blocked meanwhile, as if the kernel served the fault: a
//! handler of the program's, run on top, could meet another absent page.
//!
//! There is one region for a process. What the handler needs of it are the words of [`REGION`],
//! written before annexd hears of the region.

use annex_shared::page::PAGE_SHIFT;
use annex_shared::ring::{Progress, Question, Ring};
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// How long a thread looks whether its page has come before it sleeps. Most come in a few
/// microseconds, and to be woken costs more.
const SPIN: Duration = Duration::from_micros(50);
/// How long a thread rests that found no slot free; doubled each time.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// A poller that has not looked for so long does not run: it is rung for.
const STANDS_STILL: Duration = Duration::from_micros(3);
/// How often a thread that sleeps asks again: whoever heard it may be gone.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Of a page fault's error code, on x86: it was a write.
const WRITE: i64 = 2;

struct Region {
    start: AtomicU64,
    /// 0: there is none.
    end: AtomicU64,
    ring: AtomicPtr<Ring>,
    bell: AtomicI32,
    /// How many threads wait for a page, and up to how many of them spin: one CPU is left to
    /// annexd, if there are two.
    waiting: AtomicU32,
    may_spin: AtomicU32,
}

static REGION: Region = Region {
    start: AtomicU64::new(0),
    end: AtomicU64::new(0),
    ring: AtomicPtr::new(std::ptr::null_mut()),
    bell: AtomicI32::new(-1),
    waiting: AtomicU32::new(0),
    may_spin: AtomicU32::new(1),
};

/// What SIGBUS did before.
struct Before(std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler is in place that reads it.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(std::cell::UnsafeCell::new(MaybeUninit::uninit()));

/// From now on faults in this range are asked for at the ring, which must stay mapped until
/// [`close`].
pub fn open((start, end): (u64, u64), ring: *const Ring, bell: i32) -> io::Result<()> {
    install()?;
    REGION.start.store(start, Relaxed);
    REGION.ring.store(ring.cast_mut(), Relaxed);
    REGION.bell.store(bell, Relaxed);
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    REGION.may_spin.store(cpus.saturating_sub(1).max(1) as u32, Relaxed);
    REGION.end.store(end, Release);
    Ok(())
}

pub fn close() {
    REGION.end.store(0, Release);
}

/// Puts the handler in place, once. A forked child has no region.
fn install() -> io::Result<()> {
    extern "C" fn in_child() {
        close();
        REGION.waiting.store(0, Relaxed);
    }
    static REPLACED: OnceLock<Result<(), i32>> = OnceLock::new();
    let replaced = REPLACED.get_or_init(|| replace().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    replaced.map_err(io::Error::from_raw_os_error)?;
    static CHILDREN: Once = Once::new();
    CHILDREN.call_once(|| {
        // It fails for lack of memory alone: then a child that faults there finds no ring, and
        // ends. SAFETY: the function only stores to an atomic.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    Ok(())
}

fn replace() -> io::Result<()> {
    // SAFETY: zeros are a valid sigaction, which is filled in; the one before is read into memory
    // of the right type. The handler is in place only once that is done, but for a moment, in which
    // there is no region yet and nothing of it is read.
    unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), BEFORE.0.get().cast()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO both; errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        let address = (*info).si_addr() as u64;
        let end = REGION.end.load(Acquire);
        // Where the kernel handles memory failures, a page that was lost before has another code.
        let is_ours = (*info).si_code == libc::BUS_ADRERR && (REGION.start.load(Relaxed)..end).contains(&address);
        if !is_ours {
            return pass_on(signal, info, context);
        }
        let error = (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize];
        let question = Question {
            page: address >> PAGE_SHIFT,
            write: error & WRITE != 0,
            thread: libc::syscall(libc::SYS_gettid) as i32,
            cpu: u32::try_from(libc::sched_getcpu()).unwrap_or(0),
        };
        // The ring is mapped for as long as the region is open.
        if wait(&*REGION.ring.load(Relaxed), REGION.bell.load(Relaxed), question) == Answer::Lost {
            return pass_on(signal, info, context);
        }
        *libc::__errno_location() = errno;
    }
}

#[derive(PartialEq, Eq)]
enum Answer {
    /// The access is to be made again.
    Again,
    /// It can't be made.
    Lost,
}

fn wait(ring: &Ring, bell: i32, question: Question) -> Answer {
    let mut nap = NAP;
    let slot = loop {
        if ring.has_ended() {
            return Answer::Again;
        }
        match ring.ask(question) {
            Some(slot) => break slot,
            // As many threads wait already. One of them will be done.
            None => rest(nap),
        };
        nap = (nap * 2).min(LONGEST_NAP);
    };
    if !ring.is_awake() {
        toll(bell);
    }
    // Threads that spin beside others would only keep annexd from the CPU that it needs to answer
    // them.
    let may_spin = REGION.waiting.fetch_add(1, Relaxed) < REGION.may_spin.load(Relaxed);
    let began = Instant::now();
    let (mut beat, mut beat_at, mut spins) = (ring.beat(), began, 0u32);
    let answer = loop {
        match ring.progress(slot) {
            Progress::Done => break Answer::Again,
            Progress::Lost => break Answer::Lost,
            _ if ring.has_ended() => break Answer::Again,
            progress => {
                spins += 1;
                if may_spin && !spins.is_multiple_of(16) {
                    std::hint::spin_loop();
                    continue;
                }
                let now = Instant::now();
                let beats = ring.beat();
                if beats != beat {
                    (beat, beat_at) = (beats, now);
                }
                if !may_spin || now - began > SPIN {
                    // Whoever is about to poll on this CPU, or was killed while it polled, must
                    // hear of it.
                    ring.point_at(slot);
                    toll(bell);
                    ring.sleep(slot, ASK_AGAIN);
                } else if progress == Progress::Asked && now - beat_at > STANDS_STILL {
                    toll(bell);
                    beat_at = now + SPIN;
                }
            }
        }
    };
    REGION.waiting.fetch_sub(1, Relaxed);
    ring.free(slot);
    answer
}

fn rest(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the time is read during the call. All signals are blocked; ending early would do no
    // harm.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

fn toll(bell: i32) {
    let one = 1u64;
    // SAFETY: eight bytes of ours. It can't fail but for a bell that was closed.
    unsafe { libc::write(bell, (&raw const one).cast(), 8) };
}

/// What SIGBUS did before is done.
///
/// # Safety
/// The arguments are the kernel's.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was in place. Handlers are called as the kernel would;
    // the signals that they want blocked are.
    unsafe {
        let before = (*BEFORE.0.get()).assume_init_ref();
        match before.sa_sigaction {
            libc::SIG_IGN | libc::SIG_DFL => {
                // The access is made again, and ends the process.
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(libc::SIGBUS, &default, std::ptr::null_mut());
                if (*info).si_code <= 0 {
                    // Somebody sent it: no access is made again.
                    libc::raise(signal);
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
