//! A program on both grounds. One run on each is enough where they agree; where they don't, three
//! on each tell chance apart.

use super::known;
use super::program::{Program, Verdict};
use super::trial::{Arena, Ground, Trial};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often a program is run on either ground where the first two runs differ.
const RUNS: usize = 3;
/// Not to have ended after this many times what it takes natively, and a minute more, is to hang.
const SLOWER: u32 = 20;
const GRACE: Duration = Duration::from_secs(60);

/// How a test under annex compares with the same test natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// It passes on both.
    Same,
    /// It does not pass natively, or it needs what this machine lacks: nothing is shown.
    NotNatively,
    /// It does not always pass natively either.
    UnsteadyNatively,
    /// It always passes natively, and did not pass under annex once of three times.
    Unsteady,
    /// docs/conformance.md tells of it.
    Known,
    /// It passes natively and not under annex, or hung there.
    Differs,
}

/// What came of one test.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub suite: &'static str,
    pub program: String,
    pub test: String,
    pub agreement: Agreement,
    /// Passes and runs.
    pub native: (usize, usize),
    pub annex: (usize, usize),
    /// What was said where it did not pass: under annex if it is run there.
    pub said: String,
}

/// What came of a program.
#[derive(Debug, Serialize)]
pub struct Row {
    pub tests: Vec<Compared>,
    pub native_seconds: f64,
    pub annex_seconds: f64,
    pub pages_out: u64,
    pub pages_back: u64,
}

/// Runs `program` of `suite` on both grounds as often as it takes.
pub fn compare(suite: &'static str, program: &Program, arena: &mut Arena) -> anyhow::Result<Row> {
    let mut natively = vec![arena.trial(program, Ground::Native, program.limit)?];
    let mut under = Vec::new();
    let limit = natively[0].took * SLOWER + GRACE;
    let passes = |trial: &Trial| trial.verdicts.values().any(Verdict::passed);
    if passes(&natively[0]) {
        under.push(arena.trial(program, Ground::Annex, limit)?);
        while under.len() < RUNS && differs(suite, &natively, &under) {
            under.push(arena.trial(program, Ground::Annex, limit)?);
            natively.push(arena.trial(program, Ground::Native, program.limit)?);
        }
    }
    let names: BTreeSet<&String> = natively.iter().chain(&under).flat_map(|t| t.verdicts.keys()).collect();
    let tests = names.into_iter().map(|test| judge(suite, program, test, &natively, &under)).collect();
    let most = |of: fn(&Trial) -> u64| under.iter().map(of).max().unwrap_or(0);
    Ok(Row {
        tests,
        native_seconds: natively[0].took.as_secs_f64(),
        annex_seconds: under.first().map_or(0.0, |trial| trial.took.as_secs_f64()),
        pages_out: most(|trial| trial.seen.pages_evicted),
        pages_back: most(|trial| trial.seen.pages_in),
    })
}

/// True while a test that the first native run passed has not passed in all runs under annex, and
/// nobody knows why.
fn differs(suite: &str, natively: &[Trial], under: &[Trial]) -> bool {
    let passed = natively[0].verdicts.iter().filter(|(_, verdict)| verdict.passed()).map(|(test, _)| test);
    let differs = |test: &&String| under.iter().any(|trial| !trial.verdicts.get(*test).is_some_and(Verdict::passed));
    passed.filter(differs).any(|test| known::of(suite, test).is_none())
}

fn judge(suite: &'static str, program: &Program, test: &str, natively: &[Trial], under: &[Trial]) -> Compared {
    let missing = Verdict::Failed("it was not run".into());
    let of = |trials: &[Trial]| -> Vec<Verdict> {
        trials.iter().map(|trial| trial.verdicts.get(test).unwrap_or(&missing).clone()).collect()
    };
    let (native, annex) = (of(natively), of(under));
    let said = annex.iter().chain(&native).map(Verdict::why).find(|why| !why.is_empty()).unwrap_or_default();
    let tally = |verdicts: &[Verdict]| (verdicts.iter().filter(|verdict| verdict.passed()).count(), verdicts.len());
    let agreement = match known::of(suite, test) {
        Some(_) if !annex.iter().all(Verdict::passed) => Agreement::Known,
        _ => agreement(&native, &annex),
    };
    Compared {
        suite,
        program: program.name.clone(),
        test: test.into(),
        agreement,
        native: tally(&native),
        annex: tally(&annex),
        said: said.into(),
    }
}

fn agreement(native: &[Verdict], annex: &[Verdict]) -> Agreement {
    let passes = |verdicts: &[Verdict]| verdicts.iter().filter(|verdict| verdict.passed()).count();
    let (natively, under) = (passes(native), passes(annex));
    if natively == 0 {
        Agreement::NotNatively
    } else if under == annex.len() {
        Agreement::Same
    } else if annex.iter().any(|verdict| matches!(verdict, Verdict::Hung(_))) {
        Agreement::Differs
    } else if natively < native.len() {
        Agreement::UnsteadyNatively
    } else if under + 1 == annex.len() && under > 0 {
        Agreement::Unsteady
    } else {
        Agreement::Differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad() -> Verdict {
        Verdict::Failed("so".into())
    }

    #[test]
    fn one_failure_of_three_is_chance_and_two_are_not() {
        use Verdict::Passed;
        let natively = [Passed, Passed, Passed];
        assert_eq!(agreement(&natively, &[bad(), Passed, Passed]), Agreement::Unsteady);
        assert_eq!(agreement(&natively, &[bad(), Passed, bad()]), Agreement::Differs);
        assert_eq!(agreement(&[Passed, bad(), Passed], &[bad(), bad(), bad()]), Agreement::UnsteadyNatively);
        assert_eq!(agreement(&[bad()], &[]), Agreement::NotNatively);
    }

    #[test]
    fn to_hang_once_is_to_differ() {
        let annex = [Verdict::Hung("here".into()), Verdict::Passed, Verdict::Passed];
        assert_eq!(agreement(&[Verdict::Passed, Verdict::Passed, Verdict::Passed], &annex), Agreement::Differs);
    }
}
