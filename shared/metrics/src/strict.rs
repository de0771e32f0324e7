//! Whether a text is OpenMetrics as we write it, for tests of those who write it: everything that
//! makes Prometheus refuse a page, and more.

use std::collections::{BTreeMap, BTreeSet};

/// What is wrong first, with the line.
pub fn check(text: &str) -> Result<(), String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let mut page = Page::default();
    for line in body.lines() {
        page.take(line).map_err(|why| format!("{why}: {line}"))?;
    }
    page.end()
}

#[derive(Default)]
struct Page {
    family: String,
    kind: String,
    families: BTreeSet<String>,
    series: BTreeSet<String>,
    /// The buckets of the histograms so far, and their counts.
    buckets: BTreeMap<String, Vec<(f64, f64)>>,
    counts: BTreeMap<String, f64>,
}

impl Page {
    fn take(&mut self, line: &str) -> Result<(), String> {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split(' ').next().unwrap_or_default();
            if !self.families.insert(name.to_owned()) {
                return Err("a family stands twice".to_owned());
            }
            (self.family, self.kind) = (name.to_owned(), String::new());
            return Ok(());
        }
        if let Some(words) = line.strip_prefix("# TYPE ") {
            let (name, kind) = words.split_once(' ').ok_or("no type")?;
            if name != self.family || !["counter", "gauge", "histogram"].contains(&kind) {
                return Err("a type of something else".to_owned());
            }
            kind.clone_into(&mut self.kind);
            return Ok(());
        }
        let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
        let value: f64 = value.parse().map_err(|_| "a value that is no number")?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, parse(labels.strip_suffix('}').ok_or("labels without an end")?)?),
            None => (series, Vec::new()),
        };
        if !self.series.insert(series.to_owned()) {
            return Err("a series stands twice".to_owned());
        }
        let suffix = name.strip_prefix(self.family.as_str()).ok_or("a sample of another family")?;
        match (self.kind.as_str(), suffix) {
            ("gauge", "") | ("counter", "_total") | ("histogram", "_sum") => {}
            ("histogram", "_count") => drop(self.counts.insert(key(&self.family, &labels), value)),
            ("histogram", "_bucket") => {
                let (le, others): (Vec<_>, Vec<_>) = labels.into_iter().partition(|(label, _)| label == "le");
                let [(_, le)] = le.as_slice() else { return Err("a bucket without le".to_owned()) };
                let le = le.parse().map_err(|_| "an le that is no number")?;
                self.buckets.entry(key(&self.family, &others)).or_default().push((le, value));
            }
            _ => return Err(format!("a {} has no {name}", self.kind)),
        }
        if self.kind == "counter" && value < 0.0 {
            return Err("a counter below zero".to_owned());
        }
        Ok(())
    }

    fn end(self) -> Result<(), String> {
        for (series, buckets) in &self.buckets {
            let grows = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
            if !buckets.windows(2).all(grows) {
                return Err(format!("the buckets of {series} do not grow"));
            }
            let last = buckets.last().copied();
            if last != self.counts.get(series).map(|count| (f64::INFINITY, *count)) {
                return Err(format!("the last bucket of {series} is not its count: {last:?}"));
            }
        }
        Ok(())
    }
}

fn key(family: &str, labels: &[(String, String)]) -> String {
    format!("{family}{labels:?}")
}

/// `a="1",b="2"`, with `\\`, `\"` and `\n` in the values.
fn parse(mut text: &str) -> Result<Vec<(String, String)>, String> {
    let mut labels = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").ok_or("a label without a value")?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            return Err(format!("a label called {name}"));
        }
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().ok_or("a value without an end")? {
                (at, '"') => break at,
                (_, '\\') => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    _ => return Err("an unknown escape".to_owned()),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        match rest[end + 1..].strip_prefix(',') {
            Some(more) => text = more,
            None if rest.len() == end + 1 => return Ok(labels),
            None => return Err("something behind a value".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prometheus_refuses_is_refused() {
        let head = "# HELP a x\n# TYPE a counter\n";
        assert_eq!(check(&format!("{head}a_total{{l=\"x \\\"\\\\\\n,}}\"}} 1\na_total 2\n# EOF\n")), Ok(()));
        for (lines, why) in [
            ("a_total 1\n", "# EOF"),
            ("a 1\n# EOF\n", "has no a"),
            ("a_total 1\na_total 1\n# EOF\n", "series stands twice"),
            ("a_total one\n# EOF\n", "no number"),
            ("a_total{l=\"x\"y\"} 1\n# EOF\n", "behind a value"),
            ("a_total{L=\"x\"} 1\n# EOF\n", "a label called L"),
            ("a_total{l=\"\\q\"} 1\n# EOF\n", "unknown escape"),
            ("b_total 1\n# EOF\n", "another family"),
            ("a_total -1\n# EOF\n", "below zero"),
            ("# HELP a again\n# EOF\n", "family stands twice"),
        ] {
            let said = check(&format!("{head}{lines}")).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let head = "# HELP h x\n# TYPE h histogram\n";
        let ends = "h_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n# EOF\n";
        assert_eq!(check(&format!("{head}h_sum 1.5\n{ends}")), Ok(()));
        assert!(check(&format!("{head}{}", ends.replace("+Inf", "2.0"))).is_err());
        assert!(check(&format!("{head}{}", ends.replace("} 1", "} 3"))).is_err());
    }
}
