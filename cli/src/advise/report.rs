//! What is found, as `--json` prints it. Sizes in bytes.

use super::cost::Cost;
use super::estimate::{self, Estimate, Verdict};
use super::group::{Group, Target};
use super::look::Look;
use super::process::LeftOut;
use super::sample::{Sampled, Track};
use annex_shared::mapping::Obstacle;
use serde::Serialize;
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[derive(Debug, Serialize)]
pub struct Report {
    /// How long was looked; what was asked for, unless it was interrupted.
    pub seconds: f64,
    pub interrupted: bool,
    #[serde(flatten)]
    pub cost: Cost,
    /// What has most to give comes first.
    pub programs: Vec<Program>,
    pub left_out: Vec<Omitted>,
    /// Processes with too little memory to be looked at.
    pub small: Small,
    /// What else is to be known.
    pub notes: Vec<String>,
}

/// A row: what `annex attach` would take as one.
#[derive(Debug, Serialize)]
pub struct Program {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The process that brings the others; of a unit or a container the largest.
    pub pid: i32,
    pub rss: u64,
    pub takeable: u64,
    pub hot: u64,
    pub cold: u64,
    /// Of what is takeable, in huge pages.
    pub huge: u64,
    /// What stays, and why.
    pub untakeable: Vec<Stays>,
    #[serde(flatten)]
    pub estimate: Estimate,
    /// What to type; `None` if nothing is to be gained.
    pub command: Option<String>,
    /// How long the longest clearing of accessed bits held up page faults.
    pub paused_ms: f64,
    /// What was hot by then, at each look.
    pub looks: Vec<Point>,
    pub processes: Vec<Member>,
    /// Processes that ended meanwhile, or could not be looked at; the sums are without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<Omitted>,
}

#[derive(Debug, Serialize)]
pub struct Stays {
    pub why: Obstacle,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct Point {
    pub seconds: f64,
    pub hot: u64,
}

#[derive(Debug, Serialize)]
pub struct Member {
    pub pid: i32,
    pub name: String,
    pub rss: u64,
    pub takeable: u64,
    pub hot: u64,
    pub cold: u64,
}

/// A program that is not in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Omitted {
    pub name: String,
    pub pid: i32,
    pub anonymous: u64,
    pub kind: &'static str,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Small {
    pub processes: u64,
    pub anonymous: u64,
}

impl Omitted {
    pub fn group(group: &Group, why: &LeftOut) -> Omitted {
        let pid = group.members.first().map_or(0, |member| member.pid);
        Omitted { name: name(group), pid, anonymous: group.anonymous(), kind: why.kind(), why: why.why() }
    }

    fn track(track: &Track) -> Option<Omitted> {
        let (process, why) = (&track.process, track.end.as_ref()?);
        let (name, pid) = (process.name.clone(), process.pid);
        Some(Omitted { name, pid, anonymous: process.anonymous, kind: why.kind(), why: why.why() })
    }
}

fn name(group: &Group) -> String {
    match &group.target {
        Target::Unit(unit) => unit.clone(),
        Target::Process(_) | Target::Container(_) => {
            group.members.first().map_or_else(String::new, |member| member.name.clone())
        }
    }
}

impl Program {
    /// An error says why there is nothing to tell of it.
    pub fn of(sampled: &Sampled, fault: Duration) -> Result<Program, Omitted> {
        let Sampled { group, tracks } = sampled;
        // An attach takes all processes of a program or none.
        let refused = tracks.iter().filter_map(|track| track.end.as_ref()).find(|end| **end == LeftOut::Userfaultfd);
        if let Some(why) = refused {
            return Err(Omitted::group(group, why));
        }
        let looks = sampled.looks();
        let ends = || tracks.iter().find_map(|track| track.end.clone()).unwrap_or(LeftOut::Ended);
        let gone = || Omitted::group(group, &ends());
        let (last, estimate) = looks.last().zip(estimate::estimate(&looks, fault)).ok_or_else(gone)?;
        // Who is left of a unit may be another than was the largest.
        let first = tracks.iter().find(|track| track.is_whole()).ok_or_else(gone)?.process.pid;
        let (unit, pid) = match &group.target {
            Target::Unit(unit) => (Some(unit.clone()), first),
            Target::Container(_) => (None, first),
            Target::Process(pid) => (None, *pid),
        };
        let is_there = pid == first;
        Ok(Program {
            name: name(group),
            container: group.container.clone(),
            rss: last.rss,
            takeable: last.takeable,
            hot: last.hot,
            cold: last.cold(),
            huge: last.huge,
            untakeable: last.untakeable.iter().map(|(&why, &bytes)| Stays { why, bytes }).collect(),
            command: is_there.then(|| command(&group.target, &estimate)).flatten(),
            estimate,
            paused_ms: sampled.paused().as_secs_f64() * 1e3,
            looks: looks.iter().map(|look| Point { seconds: look.after.as_secs_f64(), hot: look.hot }).collect(),
            processes: tracks.iter().filter(|track| track.is_whole()).filter_map(Member::of).collect(),
            missed: tracks.iter().filter_map(Omitted::track).collect(),
            unit,
            pid,
        })
    }

    /// All that counts towards a limit.
    pub fn is_mostly_untakeable(&self) -> bool {
        self.takeable < self.rss / 2
    }
}

impl Member {
    fn of(track: &Track) -> Option<Member> {
        let look: &Look = track.looks.last()?;
        let (pid, name) = (track.process.pid, track.process.name.clone());
        Some(Member { pid, name, rss: look.rss, takeable: look.takeable, hot: look.hot, cold: look.cold() })
    }
}

/// As a shell takes it.
fn command(target: &Target, estimate: &Estimate) -> Option<String> {
    let local = match estimate.verdict {
        Verdict::Attach => format!("{}M", estimate.limit / MIB),
        Verdict::Auto => "auto".into(),
        Verdict::Leave => return None,
    };
    let target = match target {
        Target::Unit(unit) => format!("--unit {}", quoted(unit)),
        Target::Container(id) => format!("--container {}", quoted(id)),
        Target::Process(pid) => pid.to_string(),
    };
    Some(format!("annex attach {target} --local {local}"))
}

fn quoted(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._@:-".contains(&b);
    if word.bytes().all(is_plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(verdict: Verdict) -> Estimate {
        Estimate { limit: 512 * MIB, gain: 100 * MIB, faults_per_s: None, lost: None, verdict }
    }

    #[test]
    fn the_command_is_what_a_shell_takes() {
        let told = |target: Target, verdict| command(&target, &estimate(verdict)).unwrap_or_default();
        let unit = |name: &str| Target::Unit(name.into());
        assert_eq!(told(Target::Process(4711), Verdict::Attach), "annex attach 4711 --local 512M");
        assert_eq!(told(unit("db@1.service"), Verdict::Auto), "annex attach --unit db@1.service --local auto");
        let odd = told(unit(r"a\x2db.service"), Verdict::Attach);
        assert_eq!(odd, r"annex attach --unit 'a\x2db.service' --local 512M");
        let container = told(Target::Container("4d5e6f708192".into()), Verdict::Attach);
        assert_eq!(container, "annex attach --container 4d5e6f708192 --local 512M");
        assert_eq!(command(&unit("a"), &estimate(Verdict::Leave)), None);
    }
}
