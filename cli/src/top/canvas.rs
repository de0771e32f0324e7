//! What pages are drawn with: text in a place, curves, tables. Text from others is made printable
//! here, where all of it passes.

use super::look::{Look, Tone};
use super::model::Curve;
use annex_shared::printable::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

pub struct Canvas<'a> {
    pub buffer: &'a mut Buffer,
    pub look: Look,
}

/// One column of a table of `T`. The first one takes the room that the others leave.
pub struct Column<T> {
    pub head: &'static str,
    pub width: u16,
    /// Screens narrower than this do without it. Of neighbours with the same head the last one that
    /// a screen has is shown.
    pub from: u16,
    pub cell: fn(&T) -> String,
}

/// The first column of a table is not narrower than this, if there is room.
const LEAST_NAME: u16 = 28;

impl Canvas<'_> {
    /// Writes text into `width` columns. What does not fit ends in `…`.
    pub fn put(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        if !self.buffer.area.contains((x, y).into()) || width == 0 {
            return;
        }
        let text = shortened(&printable(text), width);
        self.buffer.set_stringn(x, y, text, usize::from(width), self.look.style(tone));
    }

    /// The same, ending at the right edge.
    pub fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        let free = width.saturating_sub(columns(&printable(text)));
        self.put(x + free, y, width - free, text, tone);
    }

    /// The newest values, the last one at the right edge.
    pub fn curve(&mut self, x: u16, y: u16, width: u16, curve: &Curve, top: f64) {
        let values: Vec<f64> = curve.newest(usize::from(width)).collect();
        let line: String = values.iter().map(|value| self.look.level(*value, top)).collect();
        self.put(x + width - values.len() as u16, y, values.len() as u16, &line, Tone::Plain);
    }

    /// A heading and the rows that fit below it, such that the selected one is among them. If not
    /// all fit, the first heading says which ones are shown.
    pub fn table<T>(
        &mut self,
        area: Rect,
        all: &[Column<T>],
        rows: &[&T],
        selected: Option<usize>,
        tone: fn(&T) -> Tone,
    ) {
        let mut shown: Vec<&Column<T>> = all.iter().filter(|column| column.from <= self.buffer.area.width).collect();
        shown.dedup_by(|wider, column| {
            let is_same = wider.head == column.head;
            if is_same {
                *column = *wider;
            }
            is_same
        });
        let taken: u16 = shown.iter().skip(1).map(|column| column.width + 1).sum();
        // Numbers stay near the names they belong to.
        let longest = rows.iter().map(|row| columns(&printable(&(shown[0].cell)(row)))).max().unwrap_or(0);
        let first = area.width.saturating_sub(taken + 2).min(longest.max(LEAST_NAME) + 2);
        let room = usize::from(area.height.saturating_sub(1));
        let begin = selected.unwrap_or(0).saturating_sub(room.saturating_sub(1));
        let end = rows.len().min(begin + room);
        let mut line = |y: u16, cells: Vec<String>, mark: &str, tone: Tone| {
            self.put(area.x, y, 2, mark, tone);
            let mut x = area.x + 2 + first;
            for (i, (cell, column)) in cells.iter().zip(&shown).enumerate() {
                match i {
                    0 => self.put(area.x + 2, y, first, cell, tone),
                    _ => {
                        self.put_right(x + 1, y, column.width, cell, tone);
                        x += column.width + 1;
                    }
                }
            }
        };
        let mut heads: Vec<String> = shown.iter().map(|column| column.head.to_owned()).collect();
        if rows.len() > room {
            heads[0] = format!("{} {}-{end} of {}", heads[0], begin + 1, rows.len());
        }
        line(area.y, heads, "", Tone::Heading);
        for (i, row) in rows.iter().enumerate().take(end).skip(begin) {
            let (mark, tone) = if selected == Some(i) { ("> ", Tone::Selected) } else { ("", tone(row)) };
            let y = area.y + 1 + (i - begin) as u16;
            line(y, shown.iter().map(|column| (column.cell)(row)).collect(), mark, tone);
        }
        let marked = selected.filter(|i| (begin..end).contains(i));
        if let Some(i) = marked {
            let y = area.y + 1 + (i - begin) as u16;
            self.buffer.set_style(Rect { y, height: 1, ..area }, self.look.style(Tone::Selected));
        }
    }
}

/// How many columns of a terminal a text takes.
pub fn columns(text: &str) -> u16 {
    Line::raw(text).width() as u16
}

fn shortened(text: &str, width: u16) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if columns(&short) >= width {
            short.pop();
            break;
        }
    }
    short.push('…');
    short
}

/// Lines of at most `width` columns, broken between words. Further lines are set in by `indent`.
pub fn wrap(text: &str, width: u16, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in printable(text).split_whitespace() {
        let has_words = !line.trim().is_empty();
        if has_words && columns(&line) + 1 + columns(word) > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
        } else if has_words {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_stay_within_the_width() {
        assert_eq!(wrap("one two three", 8, "  "), ["one two", "  three"]);
        assert_eq!(wrap("a\x1b[2J", 80, ""), ["a\\u{1b}[2J"]);
        assert_eq!(wrap("", 8, ""), [""]);
    }

    #[test]
    fn what_does_not_fit_says_so() {
        assert_eq!(shortened("redis-server", 6), "redis…");
        assert_eq!(shortened("大大大", 4), "大…");
        assert_eq!(shortened("redis", 5), "redis");
    }

    #[test]
    fn text_outside_of_the_screen_is_left_out() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 1));
        let mut canvas = Canvas { buffer: &mut buffer, look: Look::PLAIN };
        canvas.put(0, 7, 4, "below", Tone::Plain);
        canvas.put(9, 0, 4, "beside", Tone::Plain);
        canvas.put_right(0, 0, 4, "1", Tone::Plain);
        assert_eq!(buffer, Buffer::with_lines(["   1"]));
    }
}
