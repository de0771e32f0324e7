//! Plain tables: a header, columns two spaces apart, numbers to the right.

use annex_shared::printable::printable;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A column's heading, and on which side its cells stand.
pub enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// Draws a table, wrapped to `width` characters if that is given.
pub fn draw(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table.set_header(columns.iter().map(|c| match c {
        Column::Text(name) | Column::Number(name) => *name,
    }));
    for row in rows {
        // Names come from donors, programs and threads.
        table.add_row(row.iter().map(|text| Cell::new(printable(text))));
    }
    let last = columns.len().saturating_sub(1);
    for (i, column) in columns.iter().enumerate() {
        let Some(drawn) = table.column_mut(i) else { continue };
        drawn.set_padding((0, if i == last { 0 } else { 2 }));
        if matches!(column, Column::Number(_)) {
            drawn.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `950`, `12.3k`, `4.5M`: a count in at most five characters.
pub fn count(n: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let mut unit = 0;
    let mut value = n as f64;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0}{}", UNITS[unit])
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_short() {
        for (n, text) in
            [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (999_999, "1.0M"), (4_560_000, "4.6M")]
        {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn names_from_others_can_not_command_the_terminal() {
        let text = draw(&[Column::Text("NAME")], [vec!["a\x1b[2J\nb\u{202e}c".to_owned()]], None);
        assert_eq!(text, "NAME\na\\u{1b}[2J\\nb\\u{202e}c\n");
    }

    #[test]
    fn numbers_stand_right_and_no_line_ends_in_spaces() {
        let rows = [vec!["a".to_owned(), "1".into()], vec!["longer".into(), "100".into()]];
        let text = draw(&[Column::Text("NAME"), Column::Number("N")], rows, None);
        assert_eq!(text, "NAME      N\na         1\nlonger  100\n");
    }
}
