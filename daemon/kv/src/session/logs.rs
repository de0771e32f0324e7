//! SLOWLOG and LATENCY: what took long.

use super::arguments::{help as help_of, integer_or, text, wrong_form};
use super::state::{OK, Session};
use crate::call::{Failure, Outcome};
use crate::reply::Reply;
use crate::server::Command;
use bytes::Bytes;

/// Entries that SLOWLOG GET shows if it is not told how many.
const SHOWN: usize = 10;

pub fn slowlog_get(session: &mut Session, args: &[Bytes]) -> Outcome {
    let count = match &args[2..] {
        [] => SHOWN,
        [count] => {
            let wrong = "ERR count should be greater than or equal to -1";
            match integer_or(count, wrong)? {
                -1 => usize::MAX,
                count => usize::try_from(count).map_err(|_| wrong)?,
            }
        }
        _ => return Err(wrong_form(args)),
    };
    let entries = session.server.slow.latest(count).into_iter().map(|entry| {
        Reply::Array(vec![
            Reply::Integer(entry.id),
            Reply::Integer(entry.time),
            Reply::Integer(entry.took.as_micros() as i64),
            Reply::Array(entry.args.into_iter().map(Reply::Bulk).collect()),
            Reply::bulk(entry.peer),
            Reply::Bulk(entry.name),
        ])
    });
    Ok(Reply::Array(entries.collect()))
}

pub fn slowlog_len(session: &mut Session, _: &[Bytes]) -> Outcome {
    Ok(Reply::Integer(session.server.slow.len() as i64))
}

pub fn slowlog_reset(session: &mut Session, _: &[Bytes]) -> Outcome {
    session.server.slow.clear();
    OK
}

pub fn slowlog_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &SLOWLOG_HELP))
}

pub fn latest(session: &mut Session, _: &[Bytes]) -> Outcome {
    let events = session.server.latency.events().into_iter().filter_map(|(name, event)| {
        let (time, took) = event.samples.back().copied()?;
        Some(Reply::Array(vec![
            Reply::bulk(name),
            Reply::Integer(time),
            Reply::Integer(took),
            Reply::Integer(event.worst),
        ]))
    });
    Ok(Reply::Array(events.collect()))
}

pub fn history(session: &mut Session, args: &[Bytes]) -> Outcome {
    let event = session.server.latency.event(&text(&args[2])).unwrap_or_default();
    let sample = |(time, took)| Reply::Array(vec![Reply::Integer(time), Reply::Integer(took)]);
    Ok(Reply::Array(event.samples.into_iter().map(sample).collect()))
}

pub fn latency_reset(session: &mut Session, args: &[Bytes]) -> Outcome {
    let latency = &session.server.latency;
    let names: Vec<String> = match &args[2..] {
        [] => latency.events().into_iter().map(|(name, _)| name).collect(),
        names => names.iter().map(|name| text(name)).collect(),
    };
    Ok(Reply::Integer(names.iter().filter(|name| latency.forget(name)).count() as i64))
}

pub fn doctor(session: &mut Session, _: &[Bytes]) -> Outcome {
    let events = session.server.latency.events();
    let report = if session.server.config.live.latency.get().is_none() && events.is_empty() {
        "I'm sorry, Dave, I can't do that. Latency monitoring is disabled in this Redis instance. You may use \"CONFIG SET \
         latency-monitor-threshold <milliseconds>.\" in order to enable it.\n"
            .to_string()
    } else if events.is_empty() {
        "Dave, no latency spike was observed during the lifetime of this Redis instance, not in the slightest bit.\n"
            .to_string()
    } else {
        let lines = events.iter().map(|(name, event)| {
            let sum: i64 = event.samples.iter().map(|(_, took)| took).sum();
            let count = event.samples.len() as i64;
            format!(
                "{name}: {count} latency spikes (average {}ms). Worst all time event {}ms.\n",
                sum / count.max(1),
                event.worst
            )
        });
        lines.collect()
    };
    Ok(Reply::verbatim(report))
}

/// One character per spike, the higher the worse.
pub fn graph(session: &mut Session, args: &[Bytes]) -> Outcome {
    let name = text(&args[2]);
    let no_samples = || Failure(format!("ERR No samples available for event '{name}'").into());
    let event = session.server.latency.event(&name).ok_or_else(no_samples)?;
    let least = event.samples.iter().map(|(_, took)| *took).min().unwrap_or(0);
    let most = event.samples.iter().map(|(_, took)| *took).max().unwrap_or(0);
    let bars = event.samples.iter().map(|(_, took)| match (took - least) * 3 / (most - least).max(1) {
        0 => '_',
        1 => 'o',
        _ => '#',
    });
    let bars: String = bars.collect();
    let head = format!("{name} - high {most} ms, low {least} ms (all time high {} ms)", event.worst);
    Ok(Reply::verbatim(format!("{head}\n{}\n{bars}\n", "-".repeat(80))))
}

pub fn histogram(session: &mut Session, args: &[Bytes]) -> Outcome {
    let commands = &session.server.commands;
    let chosen: Vec<&Command> = match &args[2..] {
        [] => commands.iter().collect(),
        names => {
            let known = names.iter().filter_map(|name| commands.by_full_name(name)).map(|id| commands.get(id));
            known.flat_map(|command| [command].into_iter().chain(commands.children(command))).collect()
        }
    };
    let told = chosen.into_iter().filter_map(|command| {
        let histogram = command.stats.latency.borrow();
        let histogram = histogram.as_ref()?;
        let counts = histogram.cumulative().into_iter().map(|(us, calls)| (Reply::Integer(us), Reply::Integer(calls)));
        let fields = vec![
            (Reply::word("calls"), Reply::Integer(histogram.total() as i64)),
            (Reply::word("histogram_usec"), Reply::Map(counts.collect())),
        ];
        Some((Reply::word(command.spec.name), Reply::Map(fields)))
    });
    Ok(Reply::Map(told.collect()))
}

pub fn latency_help(_: &mut Session, args: &[Bytes]) -> Outcome {
    Ok(help_of(args, &LATENCY_HELP))
}

const SLOWLOG_HELP: [&str; 9] = [
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
];

const LATENCY_HELP: [&str; 14] = [
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "GRAPH <event>",
    "    Return an ASCII latency graph for the <event> class.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "    If no commands are specified then all histograms are replied.",
];
