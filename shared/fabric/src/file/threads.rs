//! The threads that go into the kernel.

use super::disk::Disk;
use super::task::{Buffer, Task};
use crate::{Arena, ArenaError, ErrorKind, OpKind};
use annex_shared::page::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::uio::{pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// So many reads may be in the kernel at once: page faults, each a thread of someone's program that
/// stands still.
const READERS: usize = 4;
/// Writes are long and come in batches.
const WRITERS: usize = 2;
const THREADS: usize = READERS + WRITERS;
/// Bytes that a thread moves at once.
const CHUNK: usize = 256 << 10;
/// The threads call little, and all of annexd's memory is locked.
const STACK: usize = 128 << 10;

/// Makes a disk of a file and starts its threads. `regions` of `region_len` bytes lie in the file
/// from `first` on, none of them lent; all of these are multiples of 4096. One I/O that takes
/// longer than `patience` cuts the disk off. `name` is for messages. The threads end with
/// [`Disk::stop`].
pub fn start_disk(file: OwnedFd, name: &str, place: (u64, u64, u32), patience: Duration) -> io::Result<Arc<Disk>> {
    let disk = Arc::new(Disk::new(file, name, place, patience, (READERS, WRITERS))?);
    start(&disk)?;
    Ok(disk)
}

fn start(disk: &Arc<Disk>) -> io::Result<()> {
    let buffer = || Arena::new(CHUNK).map(Buffer).map_err(|e: ArenaError| io::Error::other(e));
    for thread in 0..THREADS {
        let (disk, mut buffer) = (disk.clone(), buffer()?);
        let name = format!("annex-disk-{thread}");
        std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            let line = if thread < READERS { &disk.reads } else { &disk.writes };
            while !disk.is_stopping() {
                let Some(task) = line.wait() else { continue };
                let result = carry_out(&disk, &task, &mut buffer, thread);
                disk.end(task.region);
                task.desk.finish(task.ticket, result);
            }
        })?;
    }
    Ok(())
}

fn carry_out(disk: &Disk, task: &Task, buffer: &mut Buffer, thread: usize) -> Result<(), ErrorKind> {
    let mut done = 0;
    while done < task.len as usize {
        let len = (task.len as usize - done).min(CHUNK);
        let at = task.at + done as u64;
        if task.kind != OpKind::Read && !task.desk.copy(task, done, buffer, len) {
            return Err(ErrorKind::Flushed);
        }
        disk.clock(thread, true);
        #[cfg(test)]
        drop(disk.gate.lock());
        let moved = transfer(disk, task.kind, buffer.bytes(len), at);
        disk.clock(thread, false);
        if let Err(error) = moved {
            disk.complain(task, &error);
            return Err(ErrorKind::RemoteOperation);
        }
        if task.kind == OpKind::Read && !task.desk.copy(task, done, buffer, len) {
            return Err(ErrorKind::Flushed);
        }
        done += len;
    }
    // Whoever has the region by now, these were not the bytes that were asked for.
    if disk.holds(task.rkey) { Ok(()) } else { Err(ErrorKind::RemoteAccess) }
}

/// All of it, however many pieces the kernel makes of it.
fn transfer(disk: &Disk, kind: OpKind, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let (rest, at) = (&mut bytes[done..], (at + done as u64) as i64);
        let moved = if kind == OpKind::Read { pread(&disk.file, rest, at) } else { pwrite(&disk.file, rest, at) };
        match moved {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            // The end of the file, or a piece that direct I/O can't go on from.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) if n % PAGE_SIZE != 0 && done + n < bytes.len() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
        }
    }
    Ok(())
}
