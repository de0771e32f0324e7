//! Events, conditions and metrics, as the API and Prometheus are told them. Events are the
//! process's own, so what is looked for has names of its own here.

use super::{Annexd, NOBODY};
use annex_host::event;
use annex_host::events::{self, Ring};
use annex_shared::api::Status;
use annex_shared::condition::{ConditionKind, Severity};
use annex_shared::event::{Event, EventKind};
use std::sync::Once;

fn keep_events() {
    static KEEP: Once = Once::new();
    KEEP.call_once(|| events::keep_in(Ring::create().unwrap()));
}

fn listed(events: &[Event], subject: &str) -> usize {
    events.iter().filter(|event| event.subject == subject).count()
}

#[test]
fn events_are_listed_in_order_and_from_a_number_on() {
    keep_events();
    let annexd = Annexd::start();
    event!(WARN, DonorAway of "order-oak", "{} does not answer", "order-oak");
    event!(INFO, DonorBack of "order-oak", "order-oak answers again");
    let events: Vec<Event> = annexd.ask("GET", "/v1/events", "").json();
    let ours: Vec<&Event> = events.iter().filter(|event| event.subject == "order-oak").collect();
    assert_eq!([ours[0].kind, ours[1].kind], [EventKind::DonorAway, EventKind::DonorBack]);
    assert_eq!(ours[0].cause, "order-oak does not answer");
    let later: Vec<Event> = annexd.ask("GET", &format!("/v1/events?after={}", ours[0].seq), "").json();
    assert_eq!(listed(&later, "order-oak"), 1);
    let wrong = annexd.ask("GET", "/v1/events?since=yesterday", "");
    assert_eq!((wrong.status, wrong.error().message.as_str()), (400, "can't make sense of ?since=yesterday"));
}

#[test]
fn what_is_about_an_app_is_for_its_user_and_for_operators() {
    keep_events();
    let annexd = Annexd::start();
    event!(ERROR, AppStopped of "app-of-root", uid 0, "stopping the app app-of-root: a test");
    event!(ERROR, AppStopped of "app-of-nobody", uid NOBODY, "stopping the app app-of-nobody: a test");
    event!(INFO, DonorUp of "donor-of-all", "it is up");
    let theirs: Vec<Event> = annexd.ask_as(NOBODY, &[], "GET", "/v1/events", "").json();
    let of = |name| listed(&theirs, name);
    assert_eq!((of("app-of-root"), of("app-of-nobody"), of("donor-of-all")), (0, 1, 1));
    let all: Vec<Event> = annexd.ask("GET", "/v1/events", "").json();
    assert_eq!((listed(&all, "app-of-root"), listed(&all, "app-of-nobody")), (1, 1));

    let status: Status = annexd.ask_as(NOBODY, &[], "GET", "/v1/status", "").json();
    let stopped: Vec<&str> = status
        .conditions
        .iter()
        .filter(|condition| condition.kind == ConditionKind::AppStopped)
        .map(|condition| condition.message.as_str())
        .collect();
    assert_eq!(stopped, ["stopping the app app-of-nobody: a test"]);
}

#[test]
fn status_has_the_conditions_it_is_judged_by() {
    let annexd = Annexd::start();
    let status: Status = annexd.ask("GET", "/v1/status", "").json();
    let kinds: Vec<ConditionKind> =
        status.conditions.iter().filter(|c| c.severity > Severity::Note).map(|c| c.kind).collect();
    assert_eq!(kinds, [ConditionKind::AtRisk, ConditionKind::DonorAway, ConditionKind::TooFewDonors]);
    assert!(status.health().starts_with("AT RISK: 16 of 16 extents"), "{}", status.health());
    assert!(status.health().ends_with("; not up: rack2-db9 (connection refused)"), "{}", status.health());
    assert_eq!(status.severity().exit_code(), 2);
}

#[test]
fn metrics_are_those_of_all_apps_and_donors() {
    let annexd = Annexd::start();
    annexd.apps.add("redis", 100, NOBODY);
    let text = annexd.control.metrics().text();
    for line in [
        "annexd_apps 1",
        "annexd_health 2",
        "annexd_donor_up{donor=\"rack1-db7\"} 1",
        "annexd_donor_up{donor=\"rack2-db9\"} 0",
        "annexd_app_faults_total{app=\"redis\",kind=\"pool\"} 1234",
        "annex_rdma_operations_total{operation=\"read\"} 3",
        "annex_kv_enabled 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
    }
}
