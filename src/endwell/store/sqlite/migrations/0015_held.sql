-- Tasks that a person holds because nobody knows whether an effect took place.
CREATE INDEX tasks_held_for_effects ON tasks (namespace, id) WHERE status = 'blocked' AND reason = 'effect_unknown';
