//! Pages in an order, each once, any of which can be taken out.

const NONE: u32 = u32::MAX;

pub struct List {
    /// Before and after each page; those of `end` are the last and the first.
    links: Vec<(u32, u32)>,
    end: u32,
    len: usize,
}

impl List {
    /// For pages below `end`.
    pub fn new(end: u32) -> List {
        let mut links = vec![(NONE, NONE); end as usize + 1];
        links[end as usize] = (end, end);
        List { links, end, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, page: u32) -> bool {
        self.links[page as usize].0 != NONE
    }

    pub fn push_front(&mut self, page: u32) {
        self.insert(page, self.end);
    }

    pub fn push_back(&mut self, page: u32) {
        self.insert(page, self.links[self.end as usize].0);
    }

    fn insert(&mut self, page: u32, after: u32) {
        let next = self.links[after as usize].1;
        self.links[page as usize] = (after, next);
        self.links[after as usize].1 = page;
        self.links[next as usize].0 = page;
        self.len += 1;
    }

    /// Whether it was there.
    pub fn remove(&mut self, page: u32) -> bool {
        let (before, next) = std::mem::replace(&mut self.links[page as usize], (NONE, NONE));
        if before == NONE {
            return false;
        }
        self.links[before as usize].1 = next;
        self.links[next as usize].0 = before;
        self.len -= 1;
        true
    }

    pub fn last(&self) -> Option<u32> {
        Some(self.links[self.end as usize].0).filter(|page| *page != self.end)
    }

    pub fn pop_back(&mut self) -> Option<u32> {
        let page = self.last()?;
        self.remove(page);
        Some(page)
    }
}
