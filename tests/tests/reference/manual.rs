//! What docs/configuration.md and the example files tell of a configuration.

use std::collections::BTreeSet;

/// A row of a table of keys.
pub struct Row {
    /// With the tables it is in: `pool.donor.address`.
    pub key: String,
    /// As a value in TOML; `None`: told in words.
    pub default: Option<String>,
}

impl Row {
    /// A file with nothing but this row's default.
    pub fn as_file(&self) -> Option<String> {
        let (table, key) = self.key.rsplit_once('.').unwrap_or(("", &self.key));
        let table = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        self.default.as_ref().map(|default| format!("{table}{key} = {default}\n"))
    }
}

/// The rows below `## file` of docs/configuration.md. The heading of a table names it, in brackets
/// as in the file; what is in no table has a heading without.
pub fn rows(manual: &str, file: &str) -> Vec<Row> {
    let (mut is_told, mut table, mut rows) = (false, String::new(), Vec::new());
    for line in manual.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            is_told = heading.trim_matches('`') == file;
            table = String::new();
        } else if let Some(heading) = line.strip_prefix("### ") {
            table =
                if heading.contains('[') { heading.trim_matches(['`', '[', ']']).to_owned() } else { String::new() };
        } else if is_told && line.starts_with("| `") {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let default = cells[3].strip_prefix('`').and_then(|value| value.strip_suffix('`'));
            rows.push(Row { key: join(&table, cells[1].trim_matches('`')), default: default.map(str::to_owned) });
        }
    }
    rows
}

/// The keys of an example file, those in comments included. What is in `[labels]` is the
/// administrator's.
pub fn example(text: &str) -> BTreeSet<String> {
    let (mut table, mut keys) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line).trim();
        if line.starts_with('[') && line.ends_with(']') {
            table = line.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            keys.insert(if table == "labels" { table.clone() } else { join(&table, key) });
        }
    }
    keys
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}
