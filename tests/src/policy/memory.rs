//! Memory that writes down which pages are used: arrays for the programs of
//! [`traces`](crate::policy::traces).
//!
//! A touch of one of the last [`NEAR`] pages is left out: it would hit in any policy.

use std::cell::RefCell;
use std::rc::Rc;

const PAGE: u64 = 4096;
/// Pages that are held to be in use at a time.
const NEAR: usize = 4;
/// Pages between two arrays.
const GAP: u64 = 64;

/// One use of a page, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read(u32),
    Write(u32),
    /// The program gave the page back to the kernel.
    Gone(u32),
}

/// What a program did to its memory.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    steps: Vec<u32>,
    /// All its pages lie below.
    pub end: u32,
    /// Where another phase of it begins.
    pub phases: Vec<usize>,
}

const GONE: u32 = 1 << 31;
const WRITTEN: u32 = 1 << 30;

impl Trace {
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub fn steps(&self) -> impl DoubleEndedIterator<Item = Step> + ExactSizeIterator {
        self.steps.iter().map(|step| {
            let page = step & !(GONE | WRITTEN);
            match step {
                step if step & GONE != 0 => Step::Gone(page),
                step if step & WRITTEN != 0 => Step::Write(page),
                _ => Step::Read(page),
            }
        })
    }

    /// The most pages that it has at a time.
    pub fn footprint(&self) -> usize {
        let mut has = vec![false; self.end as usize];
        let (mut now, mut most) = (0usize, 0);
        for step in self.steps() {
            match step {
                Step::Gone(page) => now -= usize::from(std::mem::take(&mut has[page as usize])),
                Step::Read(page) | Step::Write(page) => {
                    now += usize::from(!std::mem::replace(&mut has[page as usize], true));
                    most = most.max(now);
                }
            }
        }
        most
    }
}

#[derive(Default)]
struct Inner {
    trace: Trace,
    near: [u32; NEAR],
    next: usize,
}

/// A program's memory.
#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<Inner>>);

impl Memory {
    /// Elements that lie one after the other, each of so many bytes.
    pub fn array<T: Clone + Default>(&self, len: usize, element: u64) -> Array<T> {
        let start = self.reserve(len as u64 * element) * PAGE;
        Array { memory: self.clone(), start, element, data: vec![T::default(); len] }
    }

    /// A range of pages that nothing else lies in: its first.
    pub fn reserve(&self, bytes: u64) -> u64 {
        let mut inner = self.0.borrow_mut();
        let first = u64::from(inner.trace.end);
        inner.trace.end = u32::try_from(first + bytes.div_ceil(PAGE) + GAP).expect("a small address space");
        assert!(inner.trace.end < WRITTEN, "an address space of that size has no trace");
        first
    }

    /// A use of the page.
    pub fn touch(&self, page: u64, write: bool) {
        let mut inner = self.0.borrow_mut();
        let step = page as u32 | if write { WRITTEN } else { 0 };
        if inner.near.contains(&(step + 1)) || (!write && inner.near.contains(&((step | WRITTEN) + 1))) {
            return;
        }
        let next = inner.next;
        inner.near[next] = step + 1;
        inner.next = (next + 1) % NEAR;
        inner.trace.steps.push(step);
    }

    pub fn touch_bytes(&self, at: u64, len: u64, write: bool) {
        (at / PAGE..=(at + len - 1) / PAGE).for_each(|page| self.touch(page, write));
    }

    /// Gives pages back to the kernel.
    pub fn free(&self, first: u64, pages: u64) {
        let mut inner = self.0.borrow_mut();
        inner.near = [0; NEAR];
        inner.trace.steps.extend((first..first + pages).map(|page| page as u32 | GONE));
    }

    /// The program goes on in another way.
    pub fn next_phase(&self) {
        let mut inner = self.0.borrow_mut();
        let at = inner.trace.steps.len();
        inner.trace.phases.push(at);
    }

    pub fn trace(&self) -> Trace {
        self.0.take().trace
    }
}

/// Elements whose uses are written down.
pub struct Array<T> {
    memory: Memory,
    start: u64,
    element: u64,
    data: Vec<T>,
}

impl<T: Clone> Array<T> {
    pub fn len(&self) -> usize {
        self.data.len()
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub fn get(&self, i: usize) -> T {
        self.memory.touch_bytes(self.start + i as u64 * self.element, self.element, false);
        self.data[i].clone()
    }

    pub fn reads(&self, elements: impl IntoIterator<Item = usize>) {
        for i in elements {
            self.get(i);
        }
    }

    pub fn set(&mut self, i: usize, value: T) {
        self.memory.touch_bytes(self.start + i as u64 * self.element, self.element, true);
        self.data[i] = value;
    }

    pub fn swap(&mut self, i: usize, j: usize) {
        let (a, b) = (self.get(i), self.get(j));
        self.set(i, b);
        self.set(j, a);
    }

    /// Gives its pages back.
    pub fn free(self) {
        let bytes = self.data.len() as u64 * self.element;
        self.memory.free(self.start / PAGE, bytes.div_ceil(PAGE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_written_down_once_while_it_is_in_use() {
        let memory = Memory::default();
        let mut array: Array<u64> = memory.array(1024, 8);
        (0..1024).for_each(|i| array.set(i, i as u64));
        (0..1024).for_each(|i| assert_eq!(array.get(i), i as u64));
        array.free();
        let steps: Vec<_> = memory.trace().steps().collect();
        assert_eq!(steps, [Step::Write(0), Step::Write(1), Step::Gone(0), Step::Gone(1)]);
    }
}
