//! Opening the store, fresh or as the annexd before left it. Then the index is made anew from the
//! records: each sheet in which live records begin is read, and each header says whose record it
//! is. Of two records of a key the higher version counts; what has expired or was cleared is gone.

use super::sheets::SheetTable;
use super::*;
use annex_host::repeated;
use annex_pool::SlotRun;
use annex_shared::ids::SlotIdx;
use futures::StreamExt;

/// READs under way together.
const TOGETHER: usize = 16;

impl Store {
    /// Opens the store over a table, which is empty or another annexd's. [`Store::start`] and then
    /// [`Store::load`] make it usable.
    pub fn open(
        pool: Arc<Pool>,
        table: Arc<SheetTable>,
        cache: u64,
        settings: Settings,
    ) -> Result<(Store, tokio::sync::mpsc::UnboundedReceiver<slot_reserve::Delivery>), OpenError> {
        let mut lane = pool.lane("kv", ARENA)?;
        lane.write_past_caches();
        let (slot_reserve, deliveries) = SlotReserve::new(pool.clone())?;
        let store = Store(Rc::new(Inner {
            pool,
            table,
            indexes: RefCell::new(std::array::from_fn(|_| Index::default())),
            cleared: RefCell::new(Vec::new()),
            empty: RefCell::default(),
            space: RefCell::new(Space::default()),
            log: RefCell::new(Log::default()),
            pool_io: PoolIo::new(lane),
            announced: Default::default(),
            slot_reserve,
            cache: RefCell::new(Cache::new(cache)),
            watches: RefCell::new(Watches::default()),
            settings: Cell::new(settings),
            stats: RefCell::default(),
            version: Cell::new(0),
            random: Cell::new(rand::random::<u64>() | 1),
            loading: Cell::new(true),
            making_room: Cell::new(false),
            looked: Cell::new(0),
            held_up: Cell::new(false),
            moving: Rc::default(),
            drained: Notify::new(),
            work: Notify::new(),
        }));
        Ok((store, deliveries))
    }

    /// Makes the index anew. Until it is, requests are told to wait.
    pub async fn load(&self) {
        let sheets: Vec<(SheetIdx, SlotIdx)> = self.0.table.sheets().collect();
        {
            let mut space = self.0.space.borrow_mut();
            sheets.iter().for_each(|(sheet, _)| space.placed(*sheet));
        }
        let with_records: Vec<(SheetIdx, SlotIdx)> =
            sheets.iter().copied().filter(|(sheet, _)| self.0.table.starts(*sheet) != 0).collect();
        let slots: Vec<SlotIdx> = with_records.iter().map(|(_, slot)| *slot).collect();
        let total = slots.len().max(1) as u64;
        let mut done = 0;
        let mut found = Found::default();
        let reads = self.runs(&slots).into_iter().map(|(nth, run)| {
            let sheets = &with_records[nth..nth + run.count as usize];
            async move { (sheets, self.headers(sheets, run).await) }
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(TOGETHER);
        while let Some((sheets, headers)) = reads.next().await {
            headers.into_iter().for_each(|(place, header)| self.take_in(place, header, &mut found));
            done += sheets.len() as u64;
            self.count(|s| s.loaded = done * 1000 / total);
        }
        drop(reads);
        for (place, header) in std::mem::take(&mut found.doubles) {
            self.take_in_double(place, &header).await;
        }
        for db in (0..DATABASES).map(Db) {
            found.last = found.last.max(self.0.table.mark(db));
        }
        self.0.version.set(found.last);
        self.0.space.borrow_mut().adopted();
        sheets.into_iter().for_each(|(sheet, _)| self.free_sheet(sheet));
        self.0.loading.set(false);
        self.count(|s| s.loaded = 1000);
        let stats = self.stats();
        if stats.lost > 0 {
            tracing::error!("{} keys are lost: no replica has their records", stats.lost);
        }
        if !slots.is_empty() {
            tracing::info!("took over {} keys in {} sheets", stats.keys, slots.len());
        }
    }

    /// The headers of the live records that begin in some sheets that lie in a row.
    async fn headers(&self, sheets: &[(SheetIdx, SlotIdx)], run: SlotRun) -> Vec<(Place, Header)> {
        let places: Vec<_> = sheets.iter().map(|(sheet, _)| self.0.table.places(*sheet)).collect();
        let whole = self.0.pool_io.read(run, |bytes| {
            let sheets = places.into_iter().zip(bytes.chunks_exact(PAGE_SIZE));
            sheets.flat_map(|(places, bytes)| self.headers_in(places, bytes)).collect::<Vec<_>>()
        });
        match whole.await {
            Ok(found) => return found,
            Err(error) if run.count == 1 => {
                let (sheet, _) = sheets[0];
                repeated!(ERROR, "failed to read records" of "", "failed to read records of the annexd before: {error}");
                let records = self.0.table.starts(sheet).count_ones();
                self.count(|s| s.lost += u64::from(records));
                return Vec::new();
            }
            Err(_) => {}
        }
        // One by one, so that one sheet that can't be read costs no other.
        let mut found = Vec::new();
        for (sheet, slot) in sheets {
            let run = SlotRun { first: *slot, count: 1 };
            found.extend(Box::pin(self.headers(&[(*sheet, *slot)], run)).await);
        }
        found
    }

    /// The headers of records that begin at these places of a sheet.
    pub(super) fn headers_in(&self, places: impl Iterator<Item = Place>, sheet: &[u8]) -> Vec<(Place, Header)> {
        let mut found = Vec::new();
        for place in places {
            match Header::decode(place.within(sheet)) {
                Ok(header) => found.push((place, header)),
                Err(error) => {
                    repeated!(ERROR, "a record can't be used" of "", "a record of the annexd before can't be used: {error}");
                    self.count(|s| s.lost += 1);
                }
            }
        }
        found
    }

    fn take_in(&self, place: Place, header: Header, found: &mut Found) {
        found.last = found.last.max(header.version);
        let is_over = header.expires.is_some_and(|at| at <= now());
        if header.db.0 >= DATABASES || header.version < self.0.table.mark(header.db) || is_over {
            return self.0.table.clear_start(place);
        }
        if self.0.indexes.borrow()[at(header.db)].find(header.hash).is_some() {
            return found.doubles.push((place, header));
        }
        self.enter(place, &header);
    }

    /// Of two records of a key the later one counts.
    async fn take_in_double(&self, place: Place, header: &Header) {
        let there = self.0.indexes.borrow()[at(header.db)].find(header.hash).map(Entry::place);
        let other = match there {
            Some(there) => self.header_at(there).await,
            None => None,
        };
        if other.is_some_and(|other| other.version > header.version) {
            return self.0.table.clear_start(place);
        }
        self.enter(place, header);
    }

    /// The header of the record that begins here.
    async fn header_at(&self, place: Place) -> Option<Header> {
        let run = SlotRun { first: self.0.table.slot(place.sheet)?, count: 1 };
        self.0.pool_io.read(run, |sheet| Header::decode(place.within(sheet))).await.ok()?.ok()
    }

    /// Enters a record that counts, in place of what was known of its key.
    fn enter(&self, place: Place, header: &Header) {
        let fresh = self.settings().policy.fresh(now());
        let entry = Entry::new(header, place, fresh);
        self.0.space.borrow_mut().adopt(place, entry.units());
        let old = self.0.indexes.borrow_mut()[at(header.db)].insert(entry);
        if let Some(old) = old {
            self.drop_record(&old);
        }
    }
}

/// What is remembered of records while they come in.
#[derive(Default)]
struct Found {
    /// The highest version.
    last: u64,
    /// Records of keys that have one already: annexd was killed between the entry of one and the
    /// removal of the other.
    doubles: Vec<(Place, Header)>,
}
