//! The orderly stop, with a scripted pager.

use annex_daemon::control::stop::{RETRY, stopped};
use annex_daemon::control::{Control, Operators};
use annex_daemon_testbed::{ScriptedApps, ScriptedDonors};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::channel;

fn control(apps: &Arc<ScriptedApps>) -> Arc<Control> {
    Control::new(apps.clone(), Arc::new(ScriptedDonors::default()), Operators::Gid(u32::MAX), Vec::new())
}

#[tokio::test]
async fn a_stop_ends_when_all_memory_is_back() {
    let apps = Arc::new(ScriptedApps::default());
    let (tx, rx) = channel(4);
    tx.send("SIGTERM").await.unwrap();
    stopped(control(&apps), rx, None).await;
    assert_eq!(apps.stops_tried(), 1);
}

#[tokio::test]
async fn a_refused_stop_goes_on_until_asked_again() {
    let apps = Arc::new(ScriptedApps::default());
    apps.refuse_stops(1);
    let control = control(&apps);
    let (tx, rx) = channel(4);
    tx.send("SIGTERM").await.unwrap();
    let task = tokio::spawn(stopped(control.clone(), rx, None));
    apps.wait_for_stops(1).await;
    // A signal counts as a new request only once the first is settled.
    let settled = async {
        while control.is_stopping() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(RETRY, settled).await.unwrap();
    assert!(!task.is_finished());
    tx.send("SIGTERM").await.unwrap();
    task.await.unwrap();
    assert_eq!(apps.stops_tried(), 2);
}

#[tokio::test]
async fn a_refused_stop_is_tried_again_for_the_service_manager() {
    let apps = Arc::new(ScriptedApps::default());
    apps.refuse_stops(2);
    let (tx, rx) = channel(4);
    tx.send("SIGTERM").await.unwrap();
    stopped(control(&apps), rx, Some(Duration::from_millis(1))).await;
    assert_eq!(apps.stops_tried(), 3);
}

#[tokio::test]
async fn a_second_signal_does_not_cut_the_first_one_short() {
    let apps = Arc::new(ScriptedApps::default());
    let hold = apps.hold_stops();
    let (tx, rx) = channel(1);
    tx.send("SIGTERM").await.unwrap();
    let task = tokio::spawn(stopped(control(&apps), rx, None));
    // The queue has one place: the third send gets through only when the second was read, during
    // the stop.
    tx.send("SIGTERM").await.unwrap();
    tx.send("SIGTERM").await.unwrap();
    assert!(!task.is_finished());
    drop(hold);
    task.await.unwrap();
    assert_eq!(apps.stops_tried(), 1);
}
