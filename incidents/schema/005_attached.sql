-- What others made and the guard only watched.
ALTER TABLE rollouts
    COMMENT COLUMN backend 'process, container, microvm or vm; attach: others made it, and the guard only watched';

ALTER TABLE sandboxes
    COMMENT COLUMN backend 'process, container, microvm or vm; attach: others made it, and the guard only watched',
    COMMENT COLUMN enforcement 'Tier: enforce, complain, absent or off, as observed; none: the guard set nothing';
