//! `annex-region`: threads that read and write pages of a region (`annex-client`) at random and
//! check every byte, until SIGTERM; what they did as a line of JSON.

use annex_client::{Limit, Options, Region};
use annex_shared::api::parse_bytes;
use annex_shared::ring::{Question, Ring, SLOTS};
use annex_tests::stress::content::{Content, Dice, PAGE};
use anyhow::Context;
use clap::Parser;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A self-verifying workload on a region.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, default_value = "64M", value_parser = |s: &str| parse_bytes(s).ok_or("give a size such as 64M"))]
    size: u64,
    #[arg(long)]
    local: Option<Limit>,
    #[arg(long)]
    name: Option<String>,
    #[arg(long, default_value_t = 4)]
    threads: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Open it, close it, and open it again; then end.
    #[arg(long)]
    twice: bool,
    /// Ask for pages at the ring without end, with every slot at once, whatever is answered.
    #[arg(long)]
    flood: bool,
    /// Have a child, and a system call, meet pages that are not there; then end.
    #[arg(long)]
    limits: bool,
}

static STOP: AtomicBool = AtomicBool::new(false);
static CHECKED: AtomicU64 = AtomicU64::new(0);

fn stop_on_sigterm() -> anyhow::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn stop(_signal: i32) {
        STOP.store(true, Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler only stores to an atomic.
    unsafe { sigaction(Signal::SIGTERM, &action)? };
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let Args { socket, size, local, name, threads, seed, twice, flood, limits } = Args::parse();
    let options = Options { socket, local, name, ..Options::of(size as usize) };
    let region = Region::new(options.clone())?;
    if twice {
        let second = Region::new(options.clone()).map(drop).unwrap_err();
        println!("{second}");
        drop(region);
        drop(Region::new(options)?);
        return Ok(());
    }
    stop_on_sigterm()?;
    let pages = size / PAGE as u64;
    for page in 0..pages {
        // SAFETY: a page of the region, which nobody else uses yet.
        unsafe { Content::of(seed, page, 0).fill(at(&region, page)) };
    }
    eprintln!("ready");
    if flood {
        return ask_without_end(&region, pages);
    }
    if limits {
        return within_limits(&region, seed, pages);
    }
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|nth| {
                scope.spawn({
                    let region = &region;
                    move || work(region, (nth, threads), pages, seed)
                })
            })
            .collect();
        started.into_iter().try_for_each(|thread| thread.join().expect("the workload does not panic"))
    })?;
    println!("{}", serde_json::json!({ "errors": 0, "checked": CHECKED.load(Relaxed) }));
    Ok(())
}

fn at(region: &Region, page: u64) -> *mut u8 {
    // SAFETY: callers ask for pages of the region.
    unsafe { region.as_ptr().add(page as usize * PAGE) }
}

fn check(region: &Region, page: u64, content: Content) -> anyhow::Result<()> {
    // SAFETY: a page of the region, which only the calling thread uses.
    unsafe { content.check(at(region, page)) }.map_err(|e| anyhow::anyhow!("WRONG CONTENT: page {page}: {e}"))
}

/// Every `threads`th page is one thread's own.
fn work(region: &Region, (nth, threads): (u64, u64), pages: u64, seed: u64) -> anyhow::Result<()> {
    let mut generations = vec![0u64; (pages / threads) as usize];
    let mut dice = Dice::new(seed ^ nth);
    while !STOP.load(Relaxed) {
        let own = dice.roll() % generations.len() as u64;
        let (page, generation) = (own * threads + nth, &mut generations[own as usize]);
        check(region, page, Content::of(seed, page, *generation))?;
        if dice.roll().is_multiple_of(2) {
            *generation += 1;
            // SAFETY: as above.
            unsafe { Content::of(seed, page, *generation).fill(at(region, page)) };
        }
        CHECKED.fetch_add(1, Relaxed);
    }
    (0..generations.len() as u64).try_for_each(|own| {
        let page = own * threads + nth;
        check(region, page, Content::of(seed, page, generations[own as usize]))
    })
}

/// A slot is freed and asked for anew though annexd works on it, and the bell is rung each time.
fn ask_without_end(region: &Region, pages: u64) -> anyhow::Result<()> {
    let (ring, bells) = (own_ring()?, own_eventfds()?);
    let first = region.as_ptr() as u64 / PAGE as u64;
    let mut dice = Dice::new(29);
    let mut asked = 0u64;
    while !STOP.load(Relaxed) {
        (0..SLOTS).for_each(|nth| ring.free(nth));
        let question = || Question { page: first + dice.roll() % pages, write: true, thread: 1, cpu: 0 };
        asked += std::iter::repeat_with(question).map_while(|question| ring.ask(question)).count() as u64;
        for bell in &bells {
            // One that is full has rung.
            let _ = nix::unistd::write(bell, &1u64.to_ne_bytes());
        }
    }
    println!("asked {asked} times");
    Ok(())
}

/// The library keeps it to itself.
fn own_ring() -> anyhow::Result<&'static Ring> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.contains("annex-ring")).context("there is a ring")?;
    let start = line.split('-').next().context("it has an address")?;
    let start = usize::from_str_radix(start, 16)?;
    // SAFETY: mapped by the library until the region is dropped, which is after its last use; all
    // of its fields are atomics.
    Ok(unsafe { &*std::ptr::with_exposed_provenance::<Ring>(start) })
}

fn own_eventfds() -> anyhow::Result<Vec<OwnedFd>> {
    let is_one = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventfd]");
    let fds = std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.path()).filter(is_one);
    let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    // SAFETY: a descriptor of this process's, which stays open meanwhile.
    let copy = |fd: i32| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    Ok(fds.filter_map(number).map(copy).collect::<Result<_, _>>()?)
}

/// What the library's documentation says of children and of system calls.
fn within_limits(region: &Region, seed: u64, pages: u64) -> anyhow::Result<()> {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    // SAFETY: there is one thread; the child touches memory and ends.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            // SAFETY: not mapped here, which is what the parent looks for.
            unsafe { at(region, 0).read_volatile() };
            std::process::exit(0);
        }
        ForkResult::Parent { child } => println!(
            "child: {}",
            match waitpid(child, None)? {
                WaitStatus::Signaled(_, signal, _) => signal.as_str().to_owned(),
                other => format!("{other:?}"),
            }
        ),
    }
    // What annexd has not noticed yet is all there.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (pipe, into) = nix::unistd::pipe()?;
    let (mut missed, mut written, mut bytes) = (0, 0, [0; PAGE]);
    for page in 0..pages {
        // SAFETY: a page of the region. The kernel reads it if it is there.
        let bare = || unsafe { std::slice::from_raw_parts(at(region, page), PAGE) };
        missed += u64::from(nix::unistd::write(&into, bare()) == Err(nix::errno::Errno::EFAULT));
        if missed > written {
            region.touch(page as usize * PAGE..(page as usize + 1) * PAGE);
            written += u64::from(nix::unistd::write(&into, bare()).is_ok());
        }
        nix::unistd::read(&pipe, &mut bytes)?;
        check(region, page, Content::of(seed, page, 0))?;
    }
    println!("missed and then written: {}", missed > 0 && missed == written);
    Ok(())
}
