//! Markdown to the language of man pages (roff), as far as docs/ uses it: headings, paragraphs,
//! lists, tables, blocks of code, links, and words in `code` or *italics*.

use std::fmt::Write;

/// The part of a document below a heading, up to the next one of the same level or above. `heading`
/// is the whole line.
#[must_use]
pub fn below<'a>(document: &'a str, heading: &str) -> Option<&'a str> {
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let at = line_starts(document).find(|(_, line)| *line == heading)?.0 + heading.len();
    let rest = &document[at..];
    let ends = |line: &str| {
        let marks = line.bytes().take_while(|byte| *byte == b'#').count();
        marks > 0 && marks <= level && line[marks..].starts_with(' ')
    };
    let end = line_starts(rest).find(|(_, line)| ends(line)).map_or(rest.len(), |(at, _)| at);
    Some(rest[..end].trim())
}

/// What stands before the first heading below the one that the text belongs to.
#[must_use]
pub fn before_headings(text: &str) -> &str {
    let end = line_starts(text).find(|(_, line)| line.starts_with('#')).map_or(text.len(), |(at, _)| at);
    text[..end].trim()
}

fn line_starts(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').scan(0, |at, line| {
        let here = *at;
        *at += line.len() + 1;
        Some((here, line))
    })
}

/// The text as roff. A table whose first column is headed by one of `sections` begins the section
/// that stands beside it, and is left out where there is none beside it.
#[must_use]
pub fn roff(text: &str, sections: &[(&str, Option<&str>)]) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            out.push_str(".PP\n.RS 4\n.EX\n");
            for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
                out.push_str(&literal(line));
                out.push('\n');
            }
            out.push_str(".EE\n.RE\n");
        } else if let Some(heading) = line.strip_prefix('#') {
            let _ = writeln!(out, ".SH \"{}\"", inline(heading.trim_start_matches('#').trim()).replace('"', "\\(dq"));
        } else if line.starts_with('|') {
            let mut rows = vec![cells(line)];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(cells(row));
            }
            table(&rows, sections, &mut out);
        } else if let Some(first) = line.strip_prefix("- ") {
            let mut item = first.to_owned();
            while let Some(more) = lines.next_if(|line| line.starts_with("  ")) {
                item.push(' ');
                item.push_str(more.trim());
            }
            let _ = writeln!(out, ".IP \\(bu 2\n{}", paragraph(&item));
        } else if !line.is_empty() {
            let mut words = line.to_owned();
            while let Some(more) = lines.next_if(|line| !line.is_empty() && !line.starts_with(['|', '#', '`'])) {
                words.push(' ');
                words.push_str(more);
            }
            let _ = writeln!(out, ".PP\n{}", paragraph(&words));
        }
    }
    out
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The first column in bold, what is between it and the last in brackets, the last one below.
fn table(rows: &[Vec<&str>], sections: &[(&str, Option<&str>)], out: &mut String) {
    let (Some(header), Some(body)) = (rows.first(), rows.get(2..)) else { return };
    match sections.iter().find(|(first, _)| header[0].starts_with(first)) {
        Some((_, None)) => return,
        Some((_, Some(section))) => {
            let _ = writeln!(out, ".SH \"{section}\"");
        }
        None => {}
    }
    for row in body {
        let [term, between @ .., effect] = row.as_slice() else { continue };
        let told = header.iter().skip(1).zip(between).map(|(name, cell)| format!("{name} {}", inline(cell)));
        let told = told.collect::<Vec<_>>().join("; ");
        let told = if told.is_empty() { told } else { format!(" ({told})") };
        let _ = writeln!(out, ".TP\n\\fB{}\\fR{told}\n{}", literal(&term.replace('`', "")), paragraph(effect));
    }
}

/// A line of running text: roff takes a `.` or `'` at its beginning for a request.
fn paragraph(text: &str) -> String {
    let text = inline(text);
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Words in backquotes come out bold, in asterisks italic, and links as their text.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[', '\\']) {
        let (before, from) = rest.split_at(at);
        out.push_str(&escape(before));
        let mark = &from[..1];
        let after = &from[1..];
        let spanned = match mark {
            "[" => link(after),
            "`" => after.split_once('`').map(|(code, after)| (format!("\\fB{}\\fR", escape(code)), after)),
            "*" => after.split_once('*').map(|(word, after)| (format!("\\fI{}\\fR", escape(word)), after)),
            // The escape of Markdown: what comes after it stands for itself.
            _ => after.chars().next().map(|c| (escape(&after[..c.len_utf8()]), &after[c.len_utf8()..])),
        };
        let (said, after) = spanned.unwrap_or_else(|| (escape(mark), after));
        out.push_str(&said);
        rest = after;
    }
    out.push_str(&escape(rest));
    out
}

/// A link's text, and what comes after it. A page of docs/ is named as the sources have it.
fn link(after: &str) -> Option<(String, &str)> {
    let (text, rest) = after.split_once("](")?;
    let (url, rest) = rest.split_once(')')?;
    let folder = if text.ends_with(".md") && !url.starts_with("..") { "docs/" } else { "" };
    Some((format!("{folder}{}", inline(text)), rest))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn literal(line: &str) -> String {
    let line = escape(line);
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_where_the_next_of_its_level_begins() {
        let document = "# a\none\n## b\ntwo\n### c\nthree\n## d\nfour\n";
        assert_eq!(below(document, "## b"), Some("two\n### c\nthree"));
        assert_eq!(below(document, "## b").map(before_headings), Some("two"));
        assert_eq!(below(document, "## d"), Some("four"));
        assert_eq!(below(document, "## e"), None);
    }

    #[test]
    fn a_table_of_keys_is_a_list_of_terms() {
        let table = "| key | type | default | effect |\n| --- | --- | --- | --- |\n| `port` | count | `\"1\"` | its `port`, see [there](x.md#y) |\n";
        assert_eq!(
            roff(table, &[]),
            ".TP\n\\fBport\\fR (type count; default \\fB\"1\"\\fR)\nits \\fBport\\fR, see there\n"
        );
    }

    #[test]
    fn a_table_may_begin_a_section_or_be_left_out() {
        let tables = "| exit code | meaning |\n| --- | --- |\n| 0 | done |\n\n| option | effect |\n| --- | --- |\n| `--x` | y |\n";
        let sections = [("exit code", Some("EXIT STATUS")), ("option", None)];
        assert_eq!(roff(tables, &sections), ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n");
    }

    #[test]
    fn nothing_of_a_text_is_taken_for_a_request() {
        assert_eq!(roff(".x is a file\n", &[]), ".PP\n\\&.x is a file\n");
        assert_eq!(roff("```\n.x --y \\z\n```\n", &[]), ".PP\n.RS 4\n.EX\n\\&.x \\-\\-y \\ez\n.EE\n.RE\n");
    }

    #[test]
    fn a_page_of_the_documents_is_named_as_the_sources_have_it() {
        assert_eq!(roff("See [kv.md](kv.md#y) and [z](x.md).\n", &[]), ".PP\nSee docs/kv.md and z.\n");
    }

    #[test]
    fn lines_of_a_paragraph_and_of_an_item_are_joined() {
        assert_eq!(
            roff("one\ntwo\n\n- a\n  b\n- *c*\n", &[]),
            ".PP\none two\n.IP \\(bu 2\na b\n.IP \\(bu 2\n\\fIc\\fR\n"
        );
    }
}
