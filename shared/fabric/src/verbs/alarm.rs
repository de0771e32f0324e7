//! When a completion queue is armed, and when its event is fetched. Pure.
//!
//! With Soft-RoCE each is a system call, with hardware an event is an interrupt. So neither is done
//! in vain:
//! - A queue that is armed makes one event, and stays armed until then. Before that one is fetched
//!   there is no other, and arming once more changes nothing.
//! - An event comes after the completion that made it. Where none has been seen since the queue was
//!   armed, there is no event to be fetched.
//! - While nothing is under way nobody has to be woken.
//!
//! A completion that was seen may have come before the queue was armed, and then makes no event; or
//! its event is late. Which it is can't be told, so the event is looked for each time until it is
//! there.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Alarm {
    /// The queue was armed, and no event was fetched since.
    is_armed: bool,
    /// A completion was seen since.
    has_seen: bool,
}

impl Alarm {
    /// Completions were taken from the queue.
    #[inline]
    pub fn seen(&mut self) {
        self.has_seen = self.is_armed;
    }

    /// There may be an event: to be asked before a sleep, which it would end for nothing.
    pub fn may_have_rung(&self) -> bool {
        self.has_seen
    }

    /// The event was there, and is fetched.
    pub fn fetched(&mut self) {
        *self = Alarm::default();
    }

    /// The queue must be armed before a sleep.
    pub fn is_due(&self, under_way: bool) -> bool {
        under_way && !self.is_armed
    }

    /// The queue is armed.
    pub fn armed(&mut self) {
        self.is_armed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A device with a completion queue, and a lane that uses it as the endpoint does.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    struct World {
        alarm: Alarm,
        lane: Lane,
        /// Operations with the device, and completions in the queue.
        flight: u8,
        queue: u8,
        is_armed: bool,
        /// Events that were made and are on their way to the descriptor, and those that make it
        /// readable.
        late: u8,
        events: u8,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    enum Lane {
        #[default]
        Awake,
        // The steps of arming, between which the device goes on.
        Fetch,
        Arm,
        Look,
        Asleep,
    }

    const MOST: u8 = 3;

    impl World {
        fn take(&mut self) {
            if self.queue > 0 {
                self.alarm.seen();
            }
            self.queue = 0;
        }

        /// The lane's next step on its way to sleep, or out of it.
        fn step(mut self) -> World {
            self.lane = match self.lane {
                Lane::Awake => {
                    self.take();
                    Lane::Fetch
                }
                Lane::Fetch => {
                    if self.alarm.may_have_rung() && self.events > 0 {
                        self.events -= 1;
                        self.alarm.fetched();
                    }
                    Lane::Arm
                }
                Lane::Arm => {
                    if self.alarm.is_due(self.flight + self.queue > 0) {
                        self.is_armed = true;
                        self.alarm.armed();
                    }
                    Lane::Look
                }
                Lane::Look if self.queue > 0 => {
                    self.take();
                    Lane::Awake
                }
                Lane::Look => Lane::Asleep,
                Lane::Asleep if self.events > 0 => Lane::Awake,
                Lane::Asleep => Lane::Asleep,
            };
            self
        }

        fn nexts(self) -> impl Iterator<Item = World> {
            let is_free = self.lane == Lane::Awake && self.flight + self.queue < MOST;
            let posted = is_free.then_some(World { flight: self.flight + 1, ..self });
            let polled = (self.lane == Lane::Awake).then(|| {
                let mut polled = self;
                polled.take();
                polled
            });
            let completed = (self.flight > 0).then(|| World {
                flight: self.flight - 1,
                queue: self.queue + 1,
                is_armed: false,
                late: self.late + u8::from(self.is_armed),
                ..self
            });
            let delivered = (self.late > 0).then(|| World { late: self.late - 1, events: self.events + 1, ..self });
            [Some(self.step()), posted, polled, completed, delivered].into_iter().flatten()
        }

        fn hold_true(self) {
            assert!(self.events + self.late <= 1, "a second event: {self:?}");
            let will_wake = self.events + self.late > 0;
            if self.lane == Lane::Asleep {
                assert!(self.queue == 0 || will_wake, "a completion is slept through: {self:?}");
                assert!(self.flight == 0 || self.is_armed || will_wake, "nothing would wake it: {self:?}");
            }
            if self.lane == Lane::Asleep && self.events > 0 {
                let mut again = self.step();
                while !matches!(again.lane, Lane::Asleep) {
                    again = again.step();
                }
                assert!(again.events == 0, "it wakes for nothing over and over: {self:?}");
            }
        }
    }

    #[test]
    fn in_no_order_of_events_is_a_completion_slept_through_nor_a_sleep_ended_over_and_over() {
        let (mut known, mut open) = (HashSet::new(), vec![World::default()]);
        while let Some(world) = open.pop() {
            if known.insert(world) {
                world.hold_true();
                open.extend(world.nexts());
            }
        }
        assert!(known.len() > 100, "only {} states", known.len());
    }

    #[test]
    fn nothing_is_armed_or_fetched_in_vain() {
        let mut alarm = Alarm::default();
        assert!(!alarm.is_due(false), "nothing is under way");
        alarm.seen();
        assert!(!alarm.may_have_rung(), "it was never armed");
        assert!(alarm.is_due(true));
        alarm.armed();
        assert!(!alarm.is_due(true), "it is armed already");
        assert!(!alarm.may_have_rung(), "nothing has completed");
        alarm.seen();
        assert!(alarm.may_have_rung() && !alarm.is_due(true));
        alarm.fetched();
        assert!(!alarm.may_have_rung() && alarm.is_due(true) && !alarm.is_due(false));
    }
}
