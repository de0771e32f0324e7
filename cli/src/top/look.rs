//! What the terminal can show: colours, or only bold and reversed, or plain text; blocks for
//! curves, or letters.

use ratatui::style::{Color, Modifier, Style};

/// What a piece of text is, from which follows how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Strong,
    Good,
    Warn,
    Bad,
    Selected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Colours,
    /// Bold and reversed.
    Mono,
    /// Nothing but letters.
    Plain,
}

#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub paint: Paint,
    /// From low to high, without the empty one.
    pub levels: &'static [char],
}

/// Curves where the terminal shows Unicode, and where it does not.
const BLOCKS: &[char] = &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LETTERS: &[char] = &['.', ':', '-', '=', '+', '*', '#', '@'];

impl Look {
    /// For a file or a pipe.
    pub const PLAIN: Look = Look { paint: Paint::Plain, levels: &[] };

    /// Whether somebody looks and presses keys.
    pub fn is_screen(self) -> bool {
        !self.levels.is_empty()
    }

    /// As the environment has it.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Look {
        let told = |name| variable(name).filter(|value| !value.is_empty());
        let term = told("TERM").unwrap_or_else(|| "dumb".into());
        let is_mono = term.contains("mono") || term.ends_with("-m") || term.starts_with("vt");
        let paint = match () {
            () if term == "dumb" => Paint::Plain,
            () if is_mono || told("NO_COLOR").is_some() => Paint::Mono,
            () => Paint::Colours,
        };
        let locale = told("LC_ALL").or_else(|| told("LC_CTYPE")).or_else(|| told("LANG")).unwrap_or_default();
        let is_unicode = locale.to_ascii_lowercase().replace('-', "").contains("utf8");
        Look { paint, levels: if is_unicode { BLOCKS } else { LETTERS } }
    }

    pub fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        match (self.paint, tone) {
            (Paint::Plain, _) | (_, Tone::Plain) => style,
            (_, Tone::Selected) => style.add_modifier(Modifier::REVERSED),
            (_, Tone::Heading | Tone::Strong) | (Paint::Mono, Tone::Bad) => style.add_modifier(Modifier::BOLD),
            (Paint::Mono, _) => style,
            (Paint::Colours, Tone::Good) => style.fg(Color::Green),
            (Paint::Colours, Tone::Warn) => style.fg(Color::Yellow),
            (Paint::Colours, Tone::Bad) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// The letter for a value of a curve whose top is `top`. What is above 0 can be seen.
    pub fn level(self, value: f64, top: f64) -> char {
        let Some(last) = self.levels.len().checked_sub(1) else { return ' ' };
        if value <= 0.0 || top <= 0.0 {
            return ' ';
        }
        let level = (value / top * (last + 1) as f64).ceil() as usize;
        self.levels[level.saturating_sub(1).min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Look {
        Look::of(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted_or_not_there() {
        assert_eq!(look(&[("TERM", "xterm-256color")]).paint, Paint::Colours);
        assert_eq!(look(&[("TERM", "xterm"), ("NO_COLOR", "")]).paint, Paint::Colours);
        assert_eq!(look(&[("TERM", "xterm"), ("NO_COLOR", "1")]).paint, Paint::Mono);
        assert_eq!(look(&[("TERM", "xterm-mono")]).paint, Paint::Mono);
        assert_eq!(look(&[("TERM", "vt100")]).paint, Paint::Mono);
        assert_eq!(look(&[("TERM", "dumb")]).paint, Paint::Plain);
        let tones = [Tone::Bad, Tone::Warn, Tone::Good, Tone::Heading, Tone::Selected];
        let mono = look(&[("TERM", "vt100")]);
        assert!(tones.iter().all(|tone| mono.style(*tone).fg.is_none()));
        assert!(tones.iter().all(|tone| look(&[]).style(*tone) == Style::new()));
    }

    #[test]
    fn curves_are_drawn_in_letters_where_the_locale_has_no_more() {
        assert_eq!(look(&[("LANG", "de_DE.UTF-8")]).level(100.0, 100.0), '█');
        assert_eq!(look(&[("LANG", "de_DE.utf8"), ("LC_ALL", "C")]).level(100.0, 100.0), '@');
        assert_eq!(look(&[]).level(0.001, 100.0), '.');
        assert_eq!(look(&[]).level(0.0, 100.0), ' ');
        assert_eq!(Look::PLAIN.level(50.0, 100.0), ' ');
    }
}
