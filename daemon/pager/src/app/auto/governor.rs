//! The thread that finds limits: once a second it measures the apps that are on auto, asks their
//! controllers, and sets the limits as `annex limit` does.
//!
//! It decides nothing. It waits for no program and no donor, and a limit that somebody asked for
//! meanwhile stays.

use crate::app::app_registry::AppRegistry;
use crate::app::auto::controller::{Blocked, Controller, Sample};
use crate::app::auto::share_out::{Claim, HostMemory, share_out};
use crate::app::{App, Auto};
use crate::evict::Cause;
use crate::kernel::host_memory;
use crate::recovery::restore;
use crate::space::Registry;
use annex_pool::Pool;
use annex_shared::api::{AppState, Limit};
use annex_shared::page::PAGE_SIZE;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_secs(1);

pub struct Governor {
    pub registry: Arc<Registry>,
    pub pool: Arc<Pool>,
    pub app_registry: Arc<AppRegistry>,
}

/// An app on auto, and what was measured of it.
struct Steered {
    app: Arc<App>,
    sample: Sample,
}

impl Governor {
    /// Until the other end of `is_over` is dropped.
    pub fn run(self, is_over: &Receiver<()>) {
        let began = Instant::now();
        let mut controllers = HashMap::new();
        while is_over.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            self.tick(began.elapsed(), &mut controllers);
        }
    }

    fn tick(&self, now: Duration, controllers: &mut HashMap<u64, Controller>) {
        let is_steered = |app: &Arc<App>| app.auto().is_some() && app.state() != AppState::Detaching;
        let apps: Vec<Arc<App>> = self.app_registry.all().into_iter().filter(is_steered).collect();
        controllers.retain(|id, _| apps.iter().any(|app| app.id == *id));
        if apps.is_empty() {
            return;
        }
        let blocked = self.blocked();
        let steered: Vec<Steered> = apps.into_iter().map(|app| self.measure(app, blocked)).collect();
        let mut claims = Vec::new();
        for Steered { app, sample } in &steered {
            let Some(auto) = app.auto() else { continue };
            let limit = in_bytes(app.limit(), sample);
            let controller = controllers.entry(app.id).or_insert_with(|| Controller::new(auto.target, limit));
            if controller.target() != auto.target || controller.limit() != limit {
                // Somebody asked for another one.
                *controller = Controller::new(auto.target, limit);
            }
            let wish = controller.tick(now, sample);
            claims.push((
                app,
                controller.target(),
                Claim { resident: sample.resident, limit: wish.limit, need: wish.need },
            ));
        }
        let host = HostMemory {
            total: host_memory::total(),
            available: host_memory::available(),
            stall: host_memory::stall(),
        };
        let limits = share_out(host.spare(), &claims.iter().map(|(.., claim)| *claim).collect::<Vec<_>>());
        let mut is_any_new = false;
        for ((app, target, _), limit) in claims.into_iter().zip(limits) {
            let Some(controller) = controllers.get_mut(&app.id) else { continue };
            controller.grant(limit);
            let auto = Auto { target, stall: controller.stall(), doing: controller.doing() };
            is_any_new |= app.steer(controller.limit(), auto);
        }
        if is_any_new {
            self.app_registry.write_down();
            self.app_registry.ring();
        }
    }

    /// Why nobody's pages can leave now.
    fn blocked(&self) -> Option<Blocked> {
        match self.pool.is_usable() {
            Err(_) => Some(Blocked::NoDonor),
            Ok(()) => self.pool.info().full.then_some(Blocked::PoolFull),
        }
    }

    fn measure(&self, app: Arc<App>, blocked: Option<Blocked>) -> Steered {
        let page = PAGE_SIZE as u64;
        let evicted = restore::evicted_about(&self.registry, &app) * page;
        let sample = Sample {
            resident: app.estimate().max(0) as u64 * page,
            evicted,
            waited: Duration::from_secs_f64(app.latency.sum_us() / 1e6),
            came_back: app.counters.brought_in.load(Relaxed) * page,
            blocked: blocked.or_else(|| app.eviction_blocked.lasting().map(of_cause)),
        };
        Steered { app, sample }
    }
}

fn in_bytes(limit: Limit, sample: &Sample) -> u64 {
    match limit {
        Limit::Bytes(bytes) => bytes,
        Limit::Percent(percent) => (sample.resident + sample.evicted) / 100 * u64::from(percent),
    }
}

fn of_cause(cause: Cause) -> Blocked {
    match cause {
        Cause::PoolFull => Blocked::PoolFull,
        Cause::UsersPool(_) | Cause::UsersTables(_) => Blocked::Quota,
        Cause::NoDonor => Blocked::NoDonor,
        Cause::Silence | Cause::NothingToTake => Blocked::Stuck,
    }
}
