//! Where the user is on the screen, and what a key does. Pure: a key goes in, and what is to be
//! done outside comes out as an [`Action`].

use super::model::{AppRow, Model};
use super::order::Choice;
use annex_shared::api::{LimitError, Local};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What is on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    #[default]
    Overview,
    /// One app, by its id.
    App(u64),
    /// All conditions, warnings and the last events.
    Conditions,
    Help,
}

/// Which list the arrows move in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    #[default]
    Apps,
    Donors,
}

/// What the last line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    #[default]
    None,
    Filter,
    Limit {
        app: String,
        typed: String,
        /// Why what was typed is no limit.
        error: String,
    },
    /// Whether to detach; bytes that would have to come back.
    Detach {
        app: String,
        evicted: u64,
    },
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub text: String,
    pub is_error: bool,
}

/// What a key asks of the world outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    /// The terminal shows something else than was drawn.
    Redraw,
    Limit {
        app: String,
        limit: Local,
    },
    Detach {
        app: String,
    },
}

#[derive(Debug, Default)]
pub struct Ui {
    pub page: Page,
    pub focus: Focus,
    pub choice: Choice,
    pub prompt: Prompt,
    pub said: Option<Said>,
    /// The first line that is shown of a page that is longer than the screen.
    pub scroll: usize,
    /// What is selected. A row keeps the selection when rows change places.
    app: Option<u64>,
    donor: Option<String>,
}

impl Ui {
    /// Which of the apps shown is selected. If it ended, the first one is.
    pub fn selected_app(&self, rows: &[&AppRow]) -> usize {
        rows.iter().position(|row| Some(row.info.id) == self.app).unwrap_or(0)
    }

    pub fn selected_donor(&self, names: &[&str]) -> usize {
        names.iter().position(|name| Some(*name) == self.donor.as_deref()).unwrap_or(0)
    }

    /// The app that keys speak of: the one on the page, or the selected one of the list.
    fn subject<'a>(&self, model: &'a Model) -> Option<&'a AppRow> {
        match self.page {
            Page::App(id) => model.app(id),
            Page::Overview if self.focus == Focus::Apps => {
                let rows = self.choice.apps(model);
                rows.get(self.selected_app(&rows)).copied()
            }
            _ => None,
        }
    }

    pub fn press(&mut self, key: KeyEvent, model: &Model) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('l') => Some(Action::Redraw),
                _ => None,
            };
        }
        match std::mem::take(&mut self.prompt) {
            Prompt::None => self.press_free(key.code, model),
            Prompt::Filter => self.press_filter(key.code),
            Prompt::Limit { app, typed, .. } => self.press_limit(key.code, app, typed),
            Prompt::Detach { app, evicted } => match key.code {
                KeyCode::Char('y' | 'Y') => Some(Action::Detach { app }),
                KeyCode::Char('n' | 'N') | KeyCode::Esc | KeyCode::Enter => None,
                // A stray key neither answers nor hides the question.
                _ => {
                    self.prompt = Prompt::Detach { app, evicted };
                    None
                }
            },
        }
    }

    fn press_free(&mut self, key: KeyCode, model: &Model) -> Option<Action> {
        self.said = None;
        match key {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('?' | 'h') => self.open(Page::Help),
            KeyCode::Char('c') => self.open(Page::Conditions),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => match self.page {
                Page::Overview if key == KeyCode::Esc => self.choice.filter.clear(),
                _ => self.open(Page::Overview),
            },
            KeyCode::Enter | KeyCode::Right if self.page == Page::Overview => {
                if let Some(app) = self.subject(model) {
                    self.open(Page::App(app.info.id));
                }
            }
            KeyCode::Tab | KeyCode::BackTab if self.page == Page::Overview => {
                self.focus = if self.focus == Focus::Apps { Focus::Donors } else { Focus::Apps };
            }
            KeyCode::Char('s') => self.choice.order = self.choice.order.next(),
            KeyCode::Char('r') => self.choice.is_reversed = !self.choice.is_reversed,
            KeyCode::Char('/') if self.page == Page::Overview => self.prompt = Prompt::Filter,
            KeyCode::Char('l') => match self.subject(model) {
                Some(app) => {
                    let app = app.info.name.clone();
                    self.prompt = Prompt::Limit { app, typed: String::new(), error: String::new() };
                }
                None => self.say_no_app(),
            },
            KeyCode::Char('d') => match self.subject(model) {
                Some(app) => {
                    self.prompt = Prompt::Detach { app: app.info.name.clone(), evicted: app.info.evicted };
                }
                None => self.say_no_app(),
            },
            KeyCode::Down | KeyCode::Char('j') => self.step(1, model),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1, model),
            KeyCode::PageDown => self.step(10, model),
            KeyCode::PageUp => self.step(-10, model),
            KeyCode::Home => self.step(isize::MIN / 2, model),
            KeyCode::End => self.step(isize::MAX / 2, model),
            _ => {}
        }
        None
    }

    fn open(&mut self, page: Page) {
        (self.page, self.scroll) = (page, 0);
    }

    fn say_no_app(&mut self) {
        let text = "select an app first (Tab moves between donors and apps)".into();
        self.said = Some(Said { text, is_error: true });
    }

    fn press_filter(&mut self, key: KeyCode) -> Option<Action> {
        match key {
            KeyCode::Enter => return None,
            KeyCode::Esc => {
                self.choice.filter.clear();
                return None;
            }
            KeyCode::Backspace => drop(self.choice.filter.pop()),
            KeyCode::Char(c) => self.choice.filter.push(c),
            _ => {}
        }
        self.prompt = Prompt::Filter;
        None
    }

    fn press_limit(&mut self, key: KeyCode, app: String, mut typed: String) -> Option<Action> {
        let mut error = String::new();
        match key {
            KeyCode::Esc => return None,
            KeyCode::Enter if typed.trim().is_empty() => return None,
            KeyCode::Enter => match typed.parse() {
                Ok(limit) => return Some(Action::Limit { app, limit }),
                Err(bad) => error = LimitError::to_string(&bad),
            },
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(c) => typed.push(c),
            _ => {}
        }
        self.prompt = Prompt::Limit { app, typed, error };
        None
    }

    /// Moves the selection, or what is shown of a long page.
    fn step(&mut self, by: isize, model: &Model) {
        match (self.page, self.focus) {
            (Page::Overview, Focus::Apps) => {
                let rows = self.choice.apps(model);
                self.app = moved(self.selected_app(&rows), by, rows.len()).map(|i| rows[i].info.id);
            }
            (Page::Overview, Focus::Donors) => {
                let rows = self.choice.donors(model);
                let names: Vec<&str> = rows.iter().map(|row| row.info.name.as_str()).collect();
                self.donor = moved(self.selected_donor(&names), by, names.len()).map(|i| names[i].to_owned());
            }
            _ => self.scroll = self.scroll.saturating_add_signed(by).min(1000),
        }
    }
}

/// The place so many rows away, within the list. `None` if it is empty.
fn moved(from: usize, by: isize, rows: usize) -> Option<usize> {
    let last = rows.checked_sub(1)?;
    Some(from.saturating_add_signed(by).min(last))
}

#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::super::scripted::two_apps;
    use super::*;
    use annex_shared::api::Limit;

    fn press(ui: &mut Ui, model: &Model, code: KeyCode) -> Option<Action> {
        ui.press(KeyEvent::new(code, KeyModifiers::NONE), model)
    }

    /// Presses each character; the last action that came of it.
    fn typed(ui: &mut Ui, model: &Model, text: &str) -> Option<Action> {
        text.chars().map(|c| press(ui, model, KeyCode::Char(c))).last().flatten()
    }

    #[test]
    fn q_and_ctrl_c_quit_and_ctrl_c_does_in_a_prompt_too() {
        let (mut ui, model) = (Ui::default(), two_apps());
        assert_eq!(typed(&mut ui, &model, "q"), Some(Action::Quit));
        typed(&mut ui, &model, "/q");
        assert_eq!((ui.choice.filter.as_str(), &ui.prompt), ("q", &Prompt::Filter));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(ui.press(interrupt, &model), Some(Action::Quit));
    }

    #[test]
    fn the_selection_stays_with_the_app_when_rows_change_places() {
        let (mut ui, mut model) = (Ui::default(), two_apps());
        press(&mut ui, &model, KeyCode::Down);
        assert_eq!(ui.subject(&model).unwrap().info.name, "sort");
        press(&mut ui, &model, KeyCode::Down);
        assert_eq!(ui.subject(&model).unwrap().info.name, "sort", "the last row");
        typed(&mut ui, &model, "r");
        assert_eq!(ui.selected_app(&ui.choice.apps(&model)), 0);
        assert_eq!(ui.subject(&model).unwrap().info.name, "sort");
        model.apps.retain(|app| app.info.name != "sort");
        assert_eq!(ui.subject(&model).unwrap().info.name, "redis");
        model.apps.clear();
        press(&mut ui, &model, KeyCode::Down);
        assert!(ui.subject(&model).is_none());
    }

    #[test]
    fn a_detach_is_asked_about_first() {
        let (mut ui, model) = (Ui::default(), two_apps());
        assert_eq!(typed(&mut ui, &model, "d"), None);
        assert_eq!(ui.prompt, Prompt::Detach { app: "redis".into(), evicted: 256 << 20 });
        assert_eq!(typed(&mut ui, &model, "x"), None);
        assert_ne!(ui.prompt, Prompt::None, "a stray key is no answer");
        assert_eq!(typed(&mut ui, &model, "n"), None);
        assert_eq!(ui.prompt, Prompt::None);
        assert_eq!(typed(&mut ui, &model, "dy"), Some(Action::Detach { app: "redis".into() }));
    }

    #[test]
    fn a_limit_is_typed_and_a_bad_one_is_explained() {
        let (mut ui, model) = (Ui::default(), two_apps());
        typed(&mut ui, &model, "l50");
        assert_eq!(press(&mut ui, &model, KeyCode::Enter), None);
        let Prompt::Limit { error, .. } = &ui.prompt else { panic!("{ui:?}") };
        assert!(error.contains("give a share (50%)"), "{error}");
        typed(&mut ui, &model, "%");
        let action = press(&mut ui, &model, KeyCode::Enter);
        assert_eq!(action, Some(Action::Limit { app: "redis".into(), limit: Local::Fixed(Limit::Percent(50)) }));
        typed(&mut ui, &model, "l9");
        assert_eq!(press(&mut ui, &model, KeyCode::Esc), None);
        assert_eq!(ui.prompt, Prompt::None);
    }

    #[test]
    fn donors_can_not_be_detached() {
        let (mut ui, model) = (Ui::default(), two_apps());
        press(&mut ui, &model, KeyCode::Tab);
        assert_eq!(typed(&mut ui, &model, "d"), None);
        assert!(ui.prompt == Prompt::None && ui.said.as_ref().is_some_and(|said| said.is_error), "{ui:?}");
    }

    #[test]
    fn enter_opens_the_selected_app_and_esc_goes_back() {
        let (mut ui, model) = (Ui::default(), two_apps());
        press(&mut ui, &model, KeyCode::Enter);
        assert_eq!(ui.page, Page::App(2));
        assert_eq!(typed(&mut ui, &model, "dy"), Some(Action::Detach { app: "redis".into() }));
        press(&mut ui, &model, KeyCode::PageDown);
        assert_eq!(ui.scroll, 10);
        press(&mut ui, &model, KeyCode::Esc);
        assert_eq!((ui.page, ui.scroll), (Page::Overview, 0));
    }

    #[test]
    fn rows_are_sorted_and_filtered_by_keys() {
        let (mut ui, model) = (Ui::default(), two_apps());
        typed(&mut ui, &model, "ssss");
        assert_eq!(ui.choice.order, Order::Name);
        typed(&mut ui, &model, "/sorx");
        press(&mut ui, &model, KeyCode::Backspace);
        press(&mut ui, &model, KeyCode::Enter);
        assert_eq!(ui.subject(&model).unwrap().info.name, "sort");
        press(&mut ui, &model, KeyCode::Esc);
        assert_eq!(ui.choice.filter, "");
    }
}
